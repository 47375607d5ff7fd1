"""An edit of the program played through the record of what each rank called."""

from __future__ import annotations

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls, Track
from distdoctor.diagnosis.hang.alignment import difference
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.reader import Rows


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
    if group.unseen or not group.tracks:
        return False
    tracks = list(group.tracks.values())
    begin = max(track.first for track in tracks)
    if begin > 1 and len({track.prefix_at(begin) for track in tracks if track.count >= begin}) != 1:
        return False  # the calls that let them part may be forgotten
    left = [(track, _without(track, begin, site)) for track in tracks]
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


def _without(track: Track, begin: int, site: SourceLine) -> Rows | None:
    """The calls from a number on without those of a line; None where one between is forgotten or torn."""
    rows: Rows = track.rows[track.rows["number"] >= begin]
    if len(rows) != max(0, track.count - begin + 1):
        return None
    kept: Rows = rows[~_is_at(track, rows, site)]
    return kept


def _agree(track: Track, rows: Rows, other: Track, others: Rows, backend: str) -> bool:
    count = min(len(rows), len(others))
    pairs = np.flatnonzero(rows["signature"][:count] != others["signature"][:count])
    mine, theirs = track.timeline.log, other.timeline.log
    return not any(difference(mine.call(rows[at]), theirs.call(others[at]), backend) for at in pairs)
