"""
DD108 cross-group-deadlock: ranks wait for each other in a cycle through two or more groups.

What it means    Each of these ranks waits in a collective of one group for a rank that waits in a collective of another group.
Why it hurts     No rank can ever proceed. Each call is correct on its own, so no backend can report the problem.
How we know      Every rank in the cycle was seen inside a blocking call and has not issued the call that its predecessor waits
                 for. This proves the deadlock at once, without a timeout, no matter when each rank was read. Seen from outside
                 it is possible, where all ranks are in one line whose group the source chooses by something of the rank.
                 Where threads communicate it is likely, and only when stacks show that none is left that could go on.
What to do       Use the groups in the same order on every rank; let loops in threads have as many turns on every rank.
When it is fine  Calls from several threads: a rank counts as stuck only when all of its threads that use the group are stuck.
Source           torch.distributed, "multiple process groups": collectives of several groups need one global order.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, POSSIBLE, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.decide_once import as_many_turns
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.in_backend import group_order
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wait_for import Wait
from distdoctor.diagnosis.hang.wording import at, by_site, deciding_places, decision_places, short
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


@check("DD108", "cross-group-deadlock", severity=ERROR, family="hang", stalls=Stalls.FOREVER)
def examine(verdict: Verdict | None, standstill: Stall | None) -> Iterator[Finding]:
    if verdict is None:
        decision = group_order(standstill) if standstill is not None else None
        if standstill is not None and decision is not None:
            yield _by_stacks(standstill, decision)
        return
    for incident in verdict.of_kind(IncidentKind.RING):
        yield _finding(verdict, incident)


def _by_stacks(standstill: Stall, decision: Decision) -> Finding:
    """All ranks in one line, for groups of which the stacks do not show which they are."""
    standings = list(standstill.standings.values())
    first = standings[0]
    cause = decision.way[-1] if decision.way else (decision.site, decision.test)
    return Finding(
        title=f"have all been in {first.call} of some group{standstill.how_long(first)}: each takes its groups in an order of "
        "its own",
        ranks=tuple(one.rank for one in standings),
        confidence=POSSIBLE,
        place=first.site,
        places=(*standstill.places(), *decision_places(decision, {first.site})),
        evidence={"operation": first.call, "waited seconds": standstill.waited_seconds},
        why=f"no rank is missing; the group that {at(first.site)} is given depends on `{cause[1]}` ({at(cause[0])}), and ranks "
        "that take two groups in different orders wait for each other (distdoctor run proves it)",
        prescriptions=(
            Prescription("same-order", change=f"use the groups in the same order on every rank ({at(cause[0])})"),
        ),
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    edges = [
        _edge(wait, incident.cycle[(number + 1) % len(incident.cycle)]) for number, wait in enumerate(incident.cycle)
    ]
    groups = sorted({wait.group.name for wait in incident.cycle if wait.group is not None})
    lines = " and ".join(dict.fromkeys(at(wait.call.site) for wait in incident.cycle))
    loop = incident.decision
    order = ", then ".join(wait.group.words for wait in incident.cycle if wait.group is not None)
    return Finding(
        title=f"wait for each other in a ring through {len(groups)} groups"
        if len(groups) > 1
        else "wait for each other in a ring",
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=incident.cycle[0].call.site,
        places=(*(one for wait in incident.cycle for one in by_site(verdict, wait.calls)), *deciding_places(incident)),
        evidence={"groups": groups, "cycle": edges},
        why="; ".join(edges + _more_rings(incident)),
        prescriptions=(
            as_many_turns(incident, loop)
            if loop is not None and loop.is_loop
            else Prescription(
                "same-order", change=f"use the groups in the same order on every rank: {order} ({lines})"
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.undecided,
    )


def _more_rings(incident: Incident) -> list[str]:
    """That others wait in the same lines in rings of their own."""
    more = [sorted(rank for wait in ring for rank in wait.ranks) for ring in incident.rings[1:]]
    return [f"{named(ranks)} wait for each other likewise" for ranks in more[:4]]


def _edge(wait: Wait, following: Wait) -> str:
    """`rank 0 waits in all_reduce #3 of group tp (ranks 0-1) for rank 1`."""
    needed = [rank for rank in wait.on if rank in following.ranks] or list(wait.on)
    group = f" of {wait.group.words}" if wait.group is not None else ""
    return f"{named(wait.ranks)} wait{'s' if len(wait.ranks) == 1 else ''} in {short(wait.call)}{group} for {named(needed)}"


def sick() -> Recording:
    script = recording(ranks=2).group("a", [0, 1]).group("b", [0, 1])
    script.collective("all_reduce", [8], group="a", site="train.py:41 exchange")
    script.collective("all_reduce", [8], group="b", site="train.py:42 exchange").swapped_by(1)
    return script.live()


def healthy() -> Recording:
    """Two pairs work through the two groups at different speeds, in one order."""
    script = recording(ranks=2).group("a", [0, 1]).group("b", [0, 1])
    for _ in range(3):
        script.collective("all_reduce", [8], group="a", site="train.py:41 exchange")
        script.compute(2.0, only=1)
        script.collective("all_reduce", [8], group="b", site="train.py:42 exchange").step()
    return (
        script.stays(1).collective("all_reduce", [8], group="a", site="train.py:41 exchange", only=0).live(silent_for=3)
    )
