"""What a recording leaves open: while something of it is open, finding nothing is not the same as being healthy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distdoctor.diagnosis.hang import in_ras
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.recording.flight.backend_state import GroupState
from distdoctor.recording.flight.rows import LAUNCHER
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording

MOST_LINES = 6


def left_open(recording: Recording) -> tuple[str, ...]:
    """What dumps do not answer: calls that are not complete, ranks without a dump, groups without counters; of ranks that train
    without a process group, whether they belong together. () otherwise."""
    if recording.ras is not None and not recording.stacks:
        return tuple(in_ras.left_open(recording.ras))[:MOST_LINES]
    copied = [*_in_copies(recording), *_by_themselves(recording)]
    if recording.job.launcher != LAUNCHER:
        return tuple(copied[:MOST_LINES])
    progress = DeviceProgress.of(recording) if recording.backend else None
    found = [*_missing(recording), *(_unfinished(progress) if progress else ()), *copied]
    return tuple(found[:MOST_LINES])


def hangs_unexplained(recording: Recording) -> bool:
    """Whether dumps are of ranks that wait in calls, whatever the cause."""
    progress = DeviceProgress.in_dumps(recording)
    return progress is not None and progress.waits_on


def _by_themselves(recording: Recording) -> Iterator[str]:
    """That ranks train and none has made a process group: nothing that they do together can be looked at."""
    logs = recording.ranks.values() if "collectives" in recording.streams else ()
    if len(logs) > 1 and all(len(log.steps) and not len(log.groups) for log in logs):
        yield f"{named(recording.ranks)} made no process group, so each trains by itself: whether one model was meant is unknown"


def _in_copies(recording: Recording) -> Iterator[str]:
    """What copied stacks show of each rank, and that they do not show whether it stood still."""
    if recording.stacks is None or not recording.stacks.copies:
        return
    if recording.stacks.ranks:
        stall = Stall.of(recording)
        for place in stall.places():
            seen = f" {'was' if len(place.ranks) == 1 else 'were'} seen at {place.site.short}" if place.site else ""
            yield f"{named(place.ranks)}{seen}: {place.role}"
        if recording.stacks.later:
            yield f"the job's log goes on after the stacks: {recording.stacks.later[:80]}"
        elif stall.is_one_moment:
            yield "one stack of each rank does not show whether the job hangs: take them again after some seconds"
    if unranked := len(recording.stacks.unranked):
        yield f"of {unranked} process{'es' if unranked > 1 else ''} nothing says which rank they are"


def _missing(recording: Recording) -> Iterator[str]:
    missing = recording.missing
    if missing:
        yield f"{named(missing)} of {recording.world_size} left no dump"
    torn = sorted({trouble.rank for trouble in recording.troubles if trouble.rank in missing})
    if torn:
        yield f"the {'dump' if len(torn) == 1 else 'dumps'} of {named(torn)} cannot be read"


def _unfinished(progress: DeviceProgress) -> Iterator[str]:
    if progress.moved_on:
        yield f"the dumps are of different moments of a job that moved on: {progress.moved_on}; dump all ranks again if it hangs"
        return
    fronts: dict[str, list[int]] = {}
    for rank, call in sorted(progress.fronts.items()):
        fronts.setdefault(call.words, []).append(rank)
    for words, ranks in sorted(fronts.items(), key=lambda one: (-len(one[1]), one[0])):
        yield f"{named(ranks)} {'has' if len(ranks) == 1 else 'have'} not completed {words}"
    for states in progress.groups.values():
        yield from _uneven(states.values())


def _uneven(states: Iterable[GroupState]) -> Iterator[str]:
    """A group of which nothing is pending and whose members count differently: then the dumps are of different moments, or a
    counter is missing."""
    states = list(states)
    if any(state.pending or state.pairwise for state in states):
        return
    counts = {state.enqueued for state in states}
    if len(counts) > 1 or any(state.completed < state.enqueued for state in states):
        words = ", ".join(map(str, sorted(counts)[:4]))
        yield f"the members of {states[0].words} have enqueued {words} calls, and nothing of it is pending in the dumps"
