"""Silence, judged by the job's own rhythm: when nothing can be proven, but nobody has moved for much longer than usual."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.facts.timeline import UNBLOCKING, Timeline
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Confidence
from distdoctor.diagnosis.hang.ending import ENDED, Ending
from distdoctor.diagnosis.hang.group_making import Making, each_its_own, stalled
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.rendezvous import inside_again, misfit, waiting_inside
from distdoctor.diagnosis.hang.wait_for import Wait
from distdoctor.recording.trace.events import InitBegun, LongPhase
from distdoctor.recording.trace.layout import Op

SECOND = 1_000_000_000
SHORTEST_NS = 10 * SECOND
STEPS_OF_PATIENCE = 5
# Before a job has a rhythm (first step, compilation, warm caches) it gets a minute; so it does in a phase known to be long.
WITHOUT_RHYTHM_NS = 60 * SECOND
AT_START_NS = 30 * SECOND
RECENT = 64  # calls of a rank among which handles are looked for
MEETING_NS = 8 * SECOND  # for ranks that cannot meet with what they asked for, or that make a group without the others
# What other hosts write into a shared folder is seen late: Linux writes dirty pages of a mapped file back after 30 s
# (vm.dirty_expire_centisecs), and an NFS client keeps attributes for up to 60 s (acregmax).
LATE_NS = 90 * SECOND
FEWEST_STEPS, FEWEST_CALLS = 3, 16  # that make a rhythm

Judgement = tuple[IncidentKind, tuple[int, ...], Confidence]


@dataclass(frozen=True)
class IdleTime:
    """Nobody has moved for `seconds`, where `usual_seconds` are usual (0: no rhythm yet). `since_ns` is wall time.

    `phase` is the long phase that some rank is in (evaluation, checkpoint, compile); `timed_out`: ranks gave up waiting.
    """

    seconds: float
    usual_seconds: float
    since_ns: int
    phase: str = ""
    timed_out: bool = False


def silence(facts: Collectives, ended: dict[int, Ending]) -> IdleTime | None:
    """The silence of a job, None while it moves, or while it is silent for good reasons."""
    job = facts.recording.job
    if not facts.timelines:
        return None
    if job.running:
        moments = [now - t.last_ns for t in facts.timelines.values() if (now := facts.now_ns(t))]
        if not moments:
            return None
        quiet = min(moments)
    else:
        quiet = _silence_before_the_end(facts, ended)
    usual = rhythm_ns(facts)
    phase = next((name for timeline in facts.timelines.values() if (name := open_phase(timeline))), "")
    patience = WITHOUT_RHYTHM_NS if not usual or phase else max(SHORTEST_NS, STEPS_OF_PATIENCE * usual)
    if _is_starting(facts):
        patience = MEETING_NS if misfit(facts) is not None else AT_START_NS
    elif stalled(facts, _living(facts, ended)) is not None or each_its_own(facts, _living(facts, ended)) is not None:
        patience = min(patience, MEETING_NS)
    if job.running and not facts.one_host:
        patience += LATE_NS
    gave_up = not job.running and any(ending.timed_out for ending in ended.values())
    if quiet < patience and not gave_up:
        return None
    since = max(timeline.wall(timeline.last_ns) for timeline in facts.timelines.values())
    return IdleTime(quiet / SECOND, usual / SECOND, since, phase, gave_up)


def _silence_before_the_end(facts: Collectives, ended: dict[int, Ending]) -> int:
    """How long the ranks that gave up waiting, or were ended, had been silent."""
    silences = [0]
    for rank, ending in ended.items():
        timeline = facts.timelines.get(rank)
        if timeline is None or not ending.at_ns:
            continue
        if ending.victim and timeline.last_call is not None:
            silences.append(ending.at_ns - timeline.wall(timeline.last_call.entered_ns))
        elif ending.how == ENDED:
            silences.append(ending.at_ns - facts.last_wall_ns)
    return max(silences)


def rhythm_ns(facts: Collectives) -> int:
    """The 99th percentile of the time between two signs of life: of the steps, else of the calls; 0 when there are too few."""
    gaps: list[int] = []
    for timeline in list(facts.timelines.values())[:64]:
        steps, calls = timeline.log.steps["at_ns"], timeline.log.calls["entered_ns"]
        if len(steps) >= FEWEST_STEPS:
            gaps.append(int(np.percentile(np.diff(steps[-512:].astype(np.int64)), 99)))
        elif not len(steps) and len(calls) > FEWEST_CALLS:
            gaps.append(int(np.percentile(np.diff(calls[-512:].astype(np.int64)), 99)))
    return max(gaps, default=0)


def open_phase(timeline: Timeline) -> str:
    """The phase that a rank is in, when it is one that may take long."""
    under_way = [one for one in timeline.log.noted(LongPhase) if not one.ended_ns]
    return max(under_way, key=lambda one: one.at_ns).phase if under_way else ""


def judge(facts: Collectives, quiet: IdleTime, found: list[Wait], ended: dict[int, Ending]) -> Judgement | None:
    """What the silence is about: (kind, ranks, confidence)."""
    living = _living(facts, ended)
    starting = _at_start(facts, living) or _in_new_group(facts, living, quiet)
    if starting is not None or not found:
        return starting
    inside = tuple(sorted({rank for wait in found for rank in wait.ranks}))
    if set(inside) >= living.keys():
        late = _came_too_late(facts, found, ended)
        if late:
            return IncidentKind.ABSENT, late, LIKELY
        if all(wait.has_all for wait in found):
            return IncidentKind.TOGETHER, inside, LIKELY
        if all(wait.call.op is Op.SEND for wait in found):
            return IncidentKind.ALL_SENT, inside, LIKELY
    if any(wait.unseen and wait.call.op is not Op.SEND for wait in found):
        return None  # whom they wait for left no recording
    if facts.recording.missing and any(
        _may_wait(facts.timelines[rank]) for wait in found for rank in wait.on if rank in living
    ):
        return None  # nor whom those wait for that hold a handle
    idle = tuple(sorted({rank for wait in found for rank in wait.on if rank not in inside and rank in living}))
    if not idle:
        return None
    return IncidentKind.ABSENT, idle, LIKELY if quiet.timed_out else POSSIBLE


def _came_too_late(facts: Collectives, found: list[Wait], ended: dict[int, Ending]) -> tuple[int, ...]:
    """The ranks that entered their call when others had given up waiting in it already. Clocks of several hosts do not tell."""
    given_up = [one.at_ns for one in ended.values() if one.timed_out and one.at_ns]
    if not given_up or not facts.one_host:
        return ()
    calls = [call for wait in found for call in wait.calls]
    return tuple(sorted(c.rank for c in calls if facts.timelines[c.rank].wall(c.entered_ns) >= min(given_up)))


def _living(facts: Collectives, ended: dict[int, Ending]) -> dict[int, Timeline]:
    """The ranks that were there to the end."""
    running = facts.recording.job.running
    return {
        r: t
        for r, t in facts.timelines.items()
        if r not in ended or ended[r].victim or not running or Making(t).gave_up
    }


def _may_wait(timeline: Timeline) -> bool:
    """Whether a call of a rank's last step gave it a handle: it may be waiting for that, which leaves no trace."""
    last = timeline.last_call
    if last is None:
        return False
    rows = timeline.log.calls[-RECENT:]
    open_handles = (
        ((rows["flags"] & int(UNBLOCKING)) != 0) & (rows["waited_ns"] == 0) & (rows["step"] == rows["step"][-1])
    )
    return bool(last.flags & UNBLOCKING) or bool(open_handles.any())


def _is_starting(facts: Collectives) -> bool:
    return bool(waiting_inside(list(facts.timelines.values())))


def _at_start(facts: Collectives, living: dict[int, Timeline]) -> Judgement | None:
    """Ranks inside init_process_group, and others that have not come there."""
    inside = waiting_inside(list(living.values()))
    if not inside:
        return None
    apart = misfit(facts)
    if apart is not None:
        return IncidentKind.NEVER_CAME, apart.ranks, LIKELY
    if again := inside_again(facts):
        return IncidentKind.NEVER_CAME, tuple(sorted(call.process for call in again)), LIKELY
    absent = tuple(
        rank
        for rank in range(facts.recording.world_size)
        if rank not in facts.timelines or not facts.timelines[rank].log.has_noted(InitBegun)
    )
    return (IncidentKind.NEVER_CAME, absent, LIKELY) if absent else None


def _in_new_group(facts: Collectives, living: dict[int, Timeline], quiet: IdleTime) -> Judgement | None:
    """Ranks that made each a group of its own, or are inside new_group while others have called it less often."""
    apart, found = each_its_own(facts, living), stalled(facts, living)
    if apart is not None:
        return IncidentKind.PASSED_BY, apart.ranks, LIKELY
    if found is None:
        return None
    long = quiet.timed_out or quiet.seconds * SECOND >= AT_START_NS  # else they may only be late
    return IncidentKind.PASSED_BY, found.odd, LIKELY if long or found.miscounted else POSSIBLE
