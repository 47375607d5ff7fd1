"""
DD109 rank-left-early: a rank exited normally while others were still waiting for it.

What it means    One rank's process has ended without an error, but other ranks of its groups have issued collectives that it
                 never issued. They can never complete.
Why it hurts     The others wait until the timeout. torchrun does not mention a rank that exits with code 0, and blames a rank
                 that waited.
How we know      The process was seen to end (or its interpreter recorded its shutdown), and the other ranks have issued more
                 collectives of the group than it did. Its count can no longer grow, so no timeout is needed. If exactly one
                 condition in the source ends the others' loop early, it is shown.
What to do       Run the same number of steps on every rank, and exit together.
When it is fine  A rank that exits after its last collective, while others still evaluate, save or print alone.
Source           torchrun's "Root Cause (first observed failure)" lists only failures; exit code 0 is not one.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.decide_once import decide_once
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    at,
    by_site,
    counts,
    decided_words,
    deciding_places,
    full,
    group_words,
    short,
)
from distdoctor.diagnosis.source.loop_exits import LoopExit, left_by
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


@check(
    "DD109", "rank-left-early", severity=ERROR, family="hang", formerly=("DD126 ranks-apart",), stalls=Stalls.FOREVER
)
def examine(verdict: Verdict | None, apart: RanksApart | None) -> Iterator[Finding]:
    if apart is not None and apart.gone is not None and apart.gone.ended_in_order:
        yield apart.gone.finding()
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.LEFT):
        yield _finding(verdict, incident)


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    assert incident.usual is not None
    assert incident.ending is not None
    rank = incident.ranks[0]
    timeline = verdict.timeline(rank)
    code = incident.ending.exit_code
    ended = f"exit code {code}" if code is not None else "its interpreter shut down"
    stuck = [call for wait in incident.waiting for call in wait.calls] or [incident.usual]
    wait = "waits" if len(stuck) == 1 else "wait"
    issued = incident.group.tracks[rank].count if incident.group is not None else 0
    why = [f"rank {rank} exited normally ({ended}) after {timeline.steps} optimizer steps"]
    if incident.group is not None:
        why.append(f"it had issued {issued} collectives{group_words(incident)}, and the others wait in #{issued + 1}")
    steps = counts(verdict, incident.ranks)
    why += [steps] if steps else []
    after = f" after {at(timeline.last_site)}" if timeline.last_site else ""
    left = left_by(verdict.recording.sources, incident.usual.site)
    why += [left.effect] if left else [words for words in [decided_words(incident)] if words]
    return Finding(
        title=f"exited normally while {named(call.rank for call in stuck)} still {wait} in {short(incident.usual)}",
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=timeline.last_site,
        places=(
            *by_site(verdict, stuck),
            *(
                [Place(timeline.last_site, (rank,), f"last seen here, before it ended ({ended})")]
                if timeline.last_site
                else []
            ),
            *deciding_places(incident),
        ),
        evidence={
            "exit_code": code,
            "steps": timeline.steps,
            "collectives_issued": issued,
            "waited_for": full(incident.usual),
            "waiting_ranks": sorted(call.rank for call in stuck),
        },
        why="; ".join(why),
        prescriptions=(_cure(verdict, incident, left, f"rank {rank} going{after}"),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _cure(verdict: Verdict, incident: Incident, left: LoopExit | None, going: str) -> Prescription:
    assert incident.usual is not None
    decided = decide_once(verdict, incident)
    decision = incident.decision
    leaves = decision is not None and (decision.stops_a_framework or (left is None and decision.exit is not None))
    if decided is not None and leaves:
        return decided
    last = f"{incident.usual.op.word} ({at(incident.usual.site)})"
    return Prescription(
        "stay-until-the-end",
        change=left.cure
        if left
        else f"keep {going} until every rank has finished its last {last}, or stop all ranks at the same step",
    )


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        if step == 3:
            script.exits(2)
        script.collective("all_reduce", [8], site="train.py:41 train_step").step()
    return script.live()


def healthy() -> Recording:
    """Rank 0 evaluates alone when the others have left."""
    script = recording(ranks=4).group("zero", [0])
    for _ in range(4):
        script.collective("all_reduce", [8], site="train.py:41 train_step").step()
    return script.exits([1, 2, 3]).collective("all_reduce", [8], group="zero", site="train.py:80 evaluate").live()
