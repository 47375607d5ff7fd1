"""
DD101 skipped-collective: a rank skipped a collective that its group is waiting in, and went on to another call.

What it means    Collectives pair up by their sequence number in the group. One rank never issued the call that the others
                 issued as number k; its own number k comes from another statement of the program.
Why it hurts     The others wait until the timeout (gloo 30 min, NCCL 10 min) or forever, and the error names an innocent rank.
How we know      The running digests of all ranks' calls are compared per group, and the first number where they differ is
                 looked up in each rank's ring buffer. The calls that follow, or that usually follow in this program,
                 distinguish a skipped call from an extra one. Two ranks are a tie: the side that broke its own routine is
                 named, otherwise both. If one side has left the loop that the other is in, and exactly one condition in the
                 source ends that loop early, it is shown.
What to do       Call the collective on every rank, or let all ranks decide together whether to call it.
When it is fine  Sub-groups, object collectives, all_to_all with unequal splits, join(): ranks are compared only with members of
                 the same group, and only in what the operation requires.
Source           torch.distributed, "collective functions": all members call them in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.decide_once import as_many_turns, decide_once, reduced_for_all, voted
from distdoctor.diagnosis.hang.decision import JOIN
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.diagnosis.hang.in_dumps import hosts_that_went_elsewhere
from distdoctor.diagnosis.hang.in_logs import LOOK, LogFacts, OutOfStep, call_in, counted, from_line, of_one_group
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.live.stack_waits import line_of
from distdoctor.diagnosis.hang.program import ADDED, SKIPPED
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    at,
    by_site,
    condition,
    counts,
    decided_words,
    deciding_places,
    full,
    group_words,
    of_variants,
    seconds,
    short,
    test_of,
    tipped,
    told_apart,
)
from distdoctor.diagnosis.source.loop_exits import LoopExit, left_by, skipped_by
from distdoctor.diagnosis.source.rank_guard import LEAVES
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording
from distdoctor.recording.trace.layout import POINT_TO_POINT
from distdoctor.testing import recording


@check(
    "DD101",
    "skipped-collective",
    severity=ERROR,
    family="hang",
    formerly=("DD126 ranks-apart", "DD127 told-by-the-log"),
    stalls=Stalls.FOREVER,
)
def examine(
    verdict: Verdict | None, progress: DeviceProgress | None, log: LogFacts | None, apart: RanksApart | None
) -> Iterator[Finding]:
    if apart is not None and apart.sides is not None:
        ways = " and ".join(line_of(side[0]) for side in (apart.sides.odd, apart.sides.usual))
        change = f"compare the ways to {ways}; distdoctor run records every call and names the first that differs"
        yield apart.sides.finding("record-the-job", change)
    if log is not None:
        yield from (_by_log(one) for one in log.out_of_step)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.DIVERGED, IncidentKind.STRAYED):
        yield _finding(verdict, incident)
    if progress is not None:
        yield from hosts_that_went_elsewhere(progress, verdict)


def _by_log(one: OutOfStep) -> Finding:
    return from_line(
        one.clue,
        f"is at {call_in(one.clue)}, the others are at #{one.furthest}: it has left out {counted(one.short, 'call')}",
        (one.rank,),
        of_one_group(one.clue.group),
        f"{named(one.completed_by)} completed #{one.clue.numbers[0]} long ago, and rank {one.rank} has enqueued nothing after it",
        Prescription("call-on-every-rank", change=f"compare what rank {one.rank} calls with the others; {LOOK}"),
        specificity=50,
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    odd, usual = incident.odd, incident.usual
    assert odd is not None
    return Finding(
        title=_title(verdict, incident, odd),
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=odd.site,
        places=of_variants(verdict, incident) if incident.divergence else _of_ring(verdict, incident, odd),
        evidence={
            "group": incident.group.name if incident.group else "",
            "sequence_number": usual.number if usual else odd.number,
            "expected": full(usual) if usual else "",
            "issued": full(odd),
            "how": incident.departure.how if incident.departure else "",
            "condition": incident.guard.test if incident.guard else "",
        }
        | tipped(incident),
        why=_why(verdict, incident, odd),
        prescriptions=(_cure(verdict, incident, odd),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.undecided,
    )


def _title(verdict: Verdict, incident: Incident, odd: Call) -> str:
    usual = incident.usual
    if incident.hint == JOIN and usual is not None:
        return f"ran out of inputs, and join() answered {short(odd)} of the others with {short(usual)}"
    if usual is None:
        return f"called {short(odd)}{group_words(incident, odd)}, which the others never call"
    mine, theirs = told_apart(odd, usual)
    if incident.is_tie:
        return f"disagree: one side called {mine}, the other {theirs}{group_words(incident, usual)}"
    if incident.how == SKIPPED:
        return f"skipped {theirs}{group_words(incident, usual)} and went on to {mine}"
    if odd.group != usual.group and not {odd.op, usual.op} & POINT_TO_POINT:
        return f"called {mine}{_of(verdict, odd)} where the others called {theirs}{_of(verdict, usual)}"
    return f"called {mine} where the others called {theirs}{group_words(incident, usual)}"


def _of(verdict: Verdict, call: Call) -> str:
    """` of group tp (ranks 0-3)`: calls of different groups have numbers of their own."""
    group = verdict.facts.group_of(call)
    return f" of {group.words}" if group is not None else ""


def _why(verdict: Verdict, incident: Incident, odd: Call) -> str:
    usual, departure = incident.usual, incident.departure
    if usual is not None and incident.hint == JOIN:
        words = [
            f"join() at {at(usual.site)} shadows only the model's own reductions: it answered the {odd.op.word} at "
            f"{at(odd.site)}, which {named(_others(incident))} called, with a collective of its own"
        ]
    elif usual is None:
        words = [f"{named(incident.ranks)} never called the {odd.op.word} at {at(odd.site)} before"]
        gone = [rank for rank in verdict.endings if rank not in incident.ranks]
        words += [f"{named(gone)} ended without it"] if gone else []
    elif departure is not None and departure.how == SKIPPED and not incident.is_tie:
        several = f" and {departure.count - 1} more" if departure.count > 1 else ""
        words = [
            f"{named(incident.ranks)} skipped the {usual.op.word} at {at(usual.site)}{several} and called the "
            f"{odd.op.word} at {at(odd.site)}, which follows it in this program"
        ]
    elif incident.is_tie:
        words = ["the ranks are split evenly, so the recording cannot tell which side is wrong"]
    else:
        words = [
            f"{named(incident.ranks)} called {odd.op.word} at {at(odd.site)}, where the others called {usual.op.word} at "
            f"{at(usual.site)}"
        ]
    if incident.silence is not None:
        words.append(f"no rank has moved for {seconds(incident.silence.seconds)}")
    left = _left_by(verdict, incident)
    words += [left.effect] if left else [words for words in [decided_words(incident)] if words]
    words += [
        note for note in (condition(incident), "" if incident.is_tie else counts(verdict, incident.ranks)) if note
    ]
    return "; ".join(words)


def _others(incident: Incident) -> list[int]:
    """The ranks on the other side of the divergence."""
    variants = incident.divergence.variants if incident.divergence is not None else ()
    return [rank for variant in variants for rank in variant.ranks if rank not in incident.ranks]


def _cure(verdict: Verdict, incident: Incident, odd: Call) -> Prescription:
    return _of_what_is_known(verdict, incident, odd) or _of_the_condition(verdict, incident, odd)


def _of_what_is_known(verdict: Verdict, incident: Incident, odd: Call) -> Prescription | None:
    """What to do where the way in which the ranks parted is known by itself: a join, a reduce, a `continue`, an early return."""
    guard, usual = incident.guard, incident.usual
    if usual is not None and incident.hint == JOIN:
        return Prescription(
            "call-on-every-rank",
            change=f"move the {odd.op.word} at {at(odd.site)} out of the join() block ({at(usual.site)}), "
            "or make it a torch.distributed.algorithms.Joinable",
        )
    decision = incident.decision
    if (reduced := reduced_for_all(decision)) is not None:
        return reduced
    skips = decision.exit if decision is not None and guard is not None and guard.how != LEAVES else None
    if decision is not None and skips is not None and skips[1] == "continue" and usual is not None:
        return Prescription(
            "decide-once",
            change=f"run {at(usual.site)} in every turn on every rank, with a loss of 0 where there is nothing to learn, "
            f"instead of `continue` ({at(skips[0])}), or all_reduce what `{decision.test}` tests",
        )
    if guard is not None and guard.how == LEAVES and usual is not None:
        behind = incident.guarded or usual
        return Prescription(
            "call-on-every-rank",
            change=f"{incident.guard_at.path.rpartition('/')[2]}:{guard.line}: `{test_of(guard)}` leaves before the "
            f"{behind.op.word} at line {behind.site.line}; call it before leaving, or have all ranks leave together",
            edits=voted(verdict, incident, replace(incident.guard_at, line=guard.line), guard.test),
        )
    return None


def _of_the_condition(verdict: Verdict, incident: Incident, odd: Call) -> Prescription:
    guard, usual, decision = incident.guard, incident.usual, incident.decision
    elsewhere = guard is not None and not guard.on_rank and decision is not None and decision.site.line != guard.line
    decided = decide_once(verdict, incident) if guard is None or elsewhere else None
    if guard is not None and decided is None:
        return Prescription(
            "decide-once",
            change=f"decide once for all ranks: all_reduce or broadcast what `{test_of(guard)}` tests before line {guard.line}",
            edits=voted(verdict, incident, replace(incident.guard_at, line=guard.line), guard.test),
        )
    left = _left_by(verdict, incident) if guard is None else None
    if left is not None:
        return Prescription("decide-once", change=left.cure, edits=voted(verdict, incident, left.site, left.test))
    if decided is not None:
        return decided
    if decision is not None and decision.handles_errors and usual is not None:
        return Prescription(
            "decide-once",
            change=f"do not go on alone after `{decision.test}` ({at(decision.site)}): let the error end the job, or all_reduce "
            f"a flag of who has failed, on every rank, before {at(usual.site)}",
        )
    if decision is not None and decision.is_loop:
        return as_many_turns(incident, decision)
    if incident.is_tie and usual is not None:
        return Prescription(
            "call-on-every-rank",
            change=f"take the same path on {named(incident.ranks)}: all call {usual.op.word} at {at(usual.site)}, "
            f"or all go on to {odd.op.word} at {at(odd.site)}",
        )
    if usual is None or (incident.departure is not None and incident.departure.how == ADDED):
        return Prescription(
            "call-on-every-rank", change=f"call the {odd.op.word} at {at(odd.site)} on every rank, or on none"
        )
    return Prescription(
        "call-on-every-rank",
        change=f"call the {usual.op.word} at {at(usual.site)} on {named(incident.ranks)} too, before {at(odd.site)}",
    )


def _left_by(verdict: Verdict, incident: Incident) -> LoopExit | None:
    """The condition under which one side left the loop that the other is in, or the rest of a turn."""
    if incident.guard is not None or incident.usual is None or incident.odd is None:
        return None
    sources, sites = verdict.recording.sources, (incident.usual.site, incident.odd.site)
    found = left_by(sources, *sites) or (left_by(sources, *reversed(sites)) if incident.is_tie else None)
    skipped = incident.departure is not None and incident.departure.how == SKIPPED
    return found or (skipped_by(sources, incident.usual.site) if skipped else None)


def _of_ring(verdict: Verdict, incident: Incident, odd: Call) -> tuple[Place, ...]:
    """The places of a rank that skipped a call of one group and waits in another one."""
    calls = [call for wait in incident.waiting for call in wait.calls if call.rank not in incident.ranks]
    return (*by_site(verdict, calls), *by_site(verdict, [odd]), *deciding_places(incident))


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        script.collective("all_reduce", [25600], site="train.py:41 train_step")
        if step == 2:
            script.skipped_by(3)
        script.collective("barrier", site="train.py:57 maybe_save").step()
    return script.live()


def healthy() -> Recording:
    """Rank 3 has a group of its own and issues more calls there than anybody else anywhere."""
    script = recording(ranks=4).group("odd", [3])
    for _ in range(4):
        script.collective("all_reduce", [25600], site="train.py:41 train_step")
        script.collective("all_reduce", [7], group="odd", site="train.py:44 train_step")
        script.collective("barrier", site="train.py:57 maybe_save").step()
    return script.live()
