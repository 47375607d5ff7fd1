"""
DD114 send-recv-cycle: every rank receives first (or sends first, more than fits the buffers), so none makes progress.

What it means    Each rank of a ring waits for its neighbor to send, and would send only after that.
Why it hurts     No rank can proceed. Rings that send first depend on the size: small messages pass, large ones hang.
How we know      A ring of receives whose sends were never issued is proven at once, and so is a ring of gloo's sends whose
                 receives were not: gloo sends nothing before the receive is there. Elsewhere a ring of sends that do not
                 return is judged by the job's usual pace (likely), because a send may return before its receive exists.
                 Copied stacks in which every rank receives and none sends show it without saying from whom.
What to do       Post both with batch_isend_irecv, or let even ranks send first and odd ranks receive first.
When it is fine  Rings of isend and irecv, pipelines, buffered sends.
Source           torch.distributed.batch_isend_irecv.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.live.rank_activity import RankActivity
from distdoctor.diagnosis.hang.live.sides import KEY
from distdoctor.diagnosis.hang.live.stack_waits import IN_PAIRS, line_of
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, by_site, deciding_places, pairwise, seconds
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording
from distdoctor.recording.trace.layout import Op
from distdoctor.testing import recording


@check(
    "DD114",
    "send-recv-cycle",
    severity=ERROR,
    family="hang",
    formerly=("DD126 ranks-apart",),
    stalls=Stalls.FOREVER,
    specificity=20,
)
def examine(verdict: Verdict | None, apart: RanksApart | None, standstill: Stall | None) -> Iterator[Finding]:
    if apart is not None and apart.ring:
        yield _by_stacks(apart)
    elif standstill is not None and (one_way := _all_one_way(standstill)) and not (verdict and verdict.incidents):
        yield _without_peers(one_way, standstill)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.RING, IncidentKind.ALL_SENT):
        if incident.kind is IncidentKind.ALL_SENT or (incident.is_one_way and not verdict.mistagged(incident)):
            yield _finding(verdict, incident)


def _all_one_way(standstill: Stall) -> list[RankActivity]:
    """All ranks, where copied stacks without arguments show each of them in a receive, or each of them in a send that waits."""
    standings = list(standstill.standings.values())
    ops = {one.op for one in standings}
    alike = (
        len(standings) > 1 and len(ops) == 1 and ops <= set(IN_PAIRS) and all(one.waits_for_ranks for one in standings)
    )
    somebody = standstill.stacks.elsewhere or standstill.stacks.unranked or any(map(standstill.is_moving, standings))
    seen = (
        standstill.stacks.copies and alike and not somebody and standstill.exceeds_patience(standstill.waited_seconds)
    )
    return standings if seen else []


def _without_peers(standings: list[RankActivity], standstill: Stall) -> Finding:
    """Whom each of them waits for is not known, but nobody does what any of them waits for."""
    first, sends = standings[0], standings[0].op is Op.SEND
    do, answers = ("send", "receives") if sends else ("receive", "sends")
    return Finding(
        title=f"all {do} at once: each waits in {first.call}, and no rank {answers}",
        ranks=tuple(one.rank for one in standings),
        confidence=POSSIBLE if standstill.is_one_moment and len(standings) < 3 else LIKELY,
        place=first.site,
        places=standstill.places(),
        evidence={"operation": first.call},
        why=f"a message has two ends, and the stacks show one kind of them on every rank; {standstill.looks}",
        prescriptions=(
            Prescription(
                "batch-isend-irecv",
                change=f"let one side {'receive' if sends else 'send'} first at {line_of(first)}, or use dist.batch_isend_irecv",
            ),
        ),
        explains=(KEY, *standstill.explains),
    )


def _by_stacks(apart: RanksApart) -> Finding:
    """A ring of receives, of sends, or of both, seen in the stacks alone."""
    ring = apart.ring
    standings = [standing for wait in ring for standing in wait.standings]
    first, sends = standings[0], ring[0].op is Op.SEND
    edges = [wait.words for wait in ring]
    title = f"every rank {'sends' if sends else 'receives'} first: a ring of {len(ring)} {first.call}s"
    change = f"let one side {'receive' if sends else 'send'} first at {line_of(first)}, or use dist.batch_isend_irecv"
    if len({wait.op for wait in ring}) > 1:
        sender = next(one for one in standings if one.op is Op.SEND)
        title = f"wait for each other in a ring of {len(ring)} sends and receives"
        change = (
            f"post the send of {line_of(sender)} without waiting for it (isend, wait() later), or after what the rank that is "
            "to receive it waits for"
        )
    return Finding(
        title=title,
        ranks=tuple(sorted(s.rank for s in standings)),
        confidence=apart.stall.confidence(*standings),
        place=standings[0].site,
        places=apart.stall.places(*standings),
        evidence={"cycle": edges},
        why=_listed(edges),
        prescriptions=(
            Prescription(
                "batch-isend-irecv",
                change=change,
            ),
        ),
        explains=(KEY,),
    )


def _listed(edges: list[str]) -> str:
    return "; ".join(edges[:6]) + (f"; and {len(edges) - 6} more" if len(edges) > 6 else "")


def _rings(incident: Incident, call: Call) -> str:
    """`a ring of 3 recvs`, `2 rings of 2 recvs`."""
    sizes = sorted({len(ring) for ring in incident.rings or (incident.waiting,)})
    rings = f"{len(incident.rings)} rings" if len(incident.rings) > 1 else "a ring"
    return f"{rings} of {' or '.join(map(str, sizes))} {call.op.word}s"


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    calls = [wait.call for wait in (incident.cycle or incident.waiting)]
    edges = [f"{named([call.rank])} waits in {pairwise(call)}" for call in calls]
    first = "sends" if calls[0].op is Op.SEND else "receives"
    why = _listed(edges)
    if incident.silence is not None:
        why += f"; no rank has moved for {seconds(incident.silence.seconds)}"
    return Finding(
        title=f"every rank {first} first: {_rings(incident, calls[0])}",
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=calls[0].site,
        places=(*by_site(verdict, calls), *deciding_places(incident)),
        evidence={"cycle": edges},
        why=why,
        prescriptions=(
            Prescription(
                "batch-isend-irecv",
                change=f"post the send and the receive at {at(calls[0].site)} together with batch_isend_irecv"
                + _or_else(incident),
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.undecided,
    )


def _or_else(incident: Incident) -> str:
    """What may be mended instead, where a question settles who sends first."""
    decision = incident.decision
    if decision is None or not incident.is_one_way or not decision.decides_alone:
        return ""
    return f", or let `{decision.test}` ({at(decision.site)}) have the two ends of each pair answer differently"


def sick() -> Recording:
    script = recording(ranks=3)
    script.collective("all_reduce", [8], site="train.py:20 main").step()
    for rank in range(3):
        script.recv(rank, (rank - 1) % 3, [8], site="train.py:41 rotate").send(
            rank, (rank + 1) % 3, [8], site="train.py:42 rotate"
        )
    return script.live()


def healthy() -> Recording:
    """The same ring, posted together."""
    script = recording(ranks=3)
    for _ in range(3):
        for rank in range(3):
            script.recv(rank, (rank - 1) % 3, [8], asynchronous=True, site="train.py:41 rotate")
            script.send(rank, (rank + 1) % 3, [8], asynchronous=True, site="train.py:42 rotate")
        script.wait().step()
    return script.live()
