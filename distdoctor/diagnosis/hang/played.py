"""An edit of the program played through the record of what each rank called."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls, Track
from distdoctor.diagnosis.facts.timeline import UNBLOCKING
from distdoctor.diagnosis.hang.alignment import difference
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.recording.trace.reader import Rows

LAST_CALLS = 4096  # of a rank that are played


def agrees_with_all_at(facts: Collectives, site: SourceLine) -> bool:
    """Whether the calls on record agree once every rank issues those of one line at the same place.

    What is left without them has to be one sequence on all members: then a rank that lacks one of them gets it between the same
    two calls as the others. Every rank will issue it, so every rank has to be a member.
    """
    everybody = set(range(facts.recording.world_size))
    groups = [group for group in facts.groups if _rows_at(group, site)]
    return bool(groups) and all(set(group.members) == everybody and agrees_without(group, site) for group in groups)


def agrees_without(group: GroupCalls, site: SourceLine) -> bool:
    """Whether the calls of the members are one sequence when those of one line are left out, as far as each has come."""
    return _agrees_but_for(group, lambda track, rows: _is_at(track, rows, site))


def agrees_without_reductions(facts: Collectives) -> bool:
    """Whether the calls of each group are one sequence without what C++ issues for wrappers: which buckets these reduce may then
    change on all ranks alike."""
    return bool(facts.groups) and all(_agrees_but_for(group, _is_native) for group in facts.groups)


def comes_through_waiting(facts: Collectives, site: SourceLine) -> bool:
    """Whether every rank comes to the end of its calls on record when it waits for those of one line where it makes them.

    False too where that cannot be known: calls of several threads, sends and receives, recordings that are missing, groups that
    were made again under one name.
    """
    names = Counter(group.name for group in facts.groups)
    members = {group.name: set(group.members) for group in facts.groups}
    if any(group.unseen for group in facts.groups) or any(count > 1 for count in names.values()):
        return False
    lanes: dict[int, deque[tuple[str, int, bool]]] = {}
    for rank, timeline in facts.timelines.items():
        if timeline.many_threads or timeline.pairwise is not None:
            return False
        log, rows = timeline.log, timeline.log.calls[-LAST_CALLS:]
        lines = {number for number in set(rows["site"].tolist()) if _same_line(log.site(number), site)}
        blocks = (rows["flags"] & UNBLOCKING == 0) | np.isin(rows["site"], list(lines))
        groups = (log.texts[number] for number in rows["group"].tolist())
        lanes[rank] = deque(zip(groups, rows["number"].tolist(), blocks.tolist(), strict=True))
    return _comes_through(lanes, members, _begun(facts, lanes))


def _begun(facts: Collectives, lanes: dict[int, deque[tuple[str, int, bool]]]) -> dict[tuple[str, int], int]:
    """By rank and group the number of the last call before those that are played."""
    begun = {(group.name, rank): track.count for group in facts.groups for rank, track in group.tracks.items()}
    for rank, lane in lanes.items():
        for group, number, _ in reversed(lane):
            begun[group, rank] = number - 1
    return begun


def _comes_through(
    lanes: dict[int, deque[tuple[str, int, bool]]], members: dict[str, set[int]], begun: dict[tuple[str, int], int]
) -> bool:
    """Play the calls (group, number, whether it blocks): who blocks goes on when every member of the group has made the call."""
    made: dict[tuple[str, int], set[int]] = defaultdict(set)
    waiting: dict[tuple[str, int], list[int]] = defaultdict(list)
    ready = deque(lanes)
    while ready:
        rank = ready.popleft()
        while lanes[rank]:
            group, number, blocks = lanes[rank].popleft()
            key = group, number
            made[key].add(rank)
            missing = any(
                one not in made[key] and begun.get((group, one), 0) < number for one in members.get(group, ())
            )
            if not missing:
                ready += waiting.pop(key, [])
            elif blocks:
                waiting[key].append(rank)
                break
    return not any(waiting.values())


def _agrees_but_for(group: GroupCalls, left_out: Callable[[Track, Rows], np.ndarray]) -> bool:
    if group.unseen or not group.tracks:
        return False
    tracks = list(group.tracks.values())
    begin = max(track.first for track in tracks)
    if begin > 1 and len({track.prefix_at(begin) for track in tracks if track.count >= begin}) != 1:
        return False  # the calls that let them part may be forgotten
    left = [(track, _without(track, begin, left_out)) for track in tracks]
    known = [(track, rows) for track, rows in left if rows is not None]
    if len(known) < len(left):
        return False
    longest, most = max(known, key=lambda one: len(one[1]))
    return all(_agree(track, rows, longest, most, group.backend) for track, rows in known)


def agrees_with_root(facts: Collectives, group: GroupCalls, number: int, site: SourceLine, root: int) -> bool:
    """Whether the calls on record agree once every rank names this root in one line.

    Up to the number where they part the line has to have named it whenever it ran, in each group: the edit must not change a
    call that was right.
    """
    for one in facts.groups:
        for track in one.tracks.values():
            rows = track.rows[_is_at(track, track.rows, site)]
            before = rows[rows["number"] < number] if one is group else rows
            if (before["root"] != root).any():
                return False
    return agrees_without(group, site)


def _rows_at(group: GroupCalls, site: SourceLine) -> bool:
    return any(bool(_is_at(track, track.rows, site).any()) for track in group.tracks.values())


def _is_at(track: Track, rows: Rows, site: SourceLine) -> np.ndarray:
    log = track.timeline.log
    ids = [number for number in set(rows["site"].tolist()) if _same_line(log.site(number), site)]
    return np.isin(rows["site"], ids)


def _same_line(one: SourceLine, other: SourceLine) -> bool:
    return (one.path, one.line) == (other.path, other.line)


def _is_native(track: Track, rows: Rows) -> np.ndarray:
    native: np.ndarray = rows["flags"] & CallFlag.NATIVE != 0
    return native


def _without(track: Track, begin: int, left_out: Callable[[Track, Rows], np.ndarray]) -> Rows | None:
    """The calls from a number on without some of them; None where one between is forgotten or torn."""
    rows: Rows = track.rows[track.rows["number"] >= begin]
    if len(rows) != max(0, track.count - begin + 1):
        return None
    kept: Rows = rows[~left_out(track, rows)]
    return kept


def _agree(track: Track, rows: Rows, other: Track, others: Rows, backend: str) -> bool:
    count = min(len(rows), len(others))
    pairs = np.flatnonzero(rows["signature"][:count] != others["signature"][:count])
    mine, theirs = track.timeline.log, other.timeline.log
    return not any(difference(mine.call(rows[at]), theirs.call(others[at]), backend) for at in pairs)
