"""Two collectives of equal size in the other order on some ranks: nothing hangs, and every result belongs to the other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from distdoctor.diagnosis.facts.collectives import GroupCalls, Track
from distdoctor.recording.recording import Call


def swapped_calls(group: GroupCalls) -> Iterator[tuple[Call, Call, tuple[int, ...], int]]:
    """(the usual first call, what the odd ranks called first, the odd ranks, when on the wall clock).

    Told by the lines alone: where the majority goes through two lines in turn, the odd ranks go through the same two in the other
    order, at numbers at which the lines used to agree. Of two ranks both are named: neither is usual.
    """
    tracks = [track for track in group.tracks.values() if track.count]
    if len(tracks) < 2 or len({track.site_prefix for track in tracks if track.count == tracks[0].count}) == 1:
        return
    usual = tracks[0] if len(tracks) == 2 else _usual(tracks)
    if usual is None:
        return
    swaps: dict[int, list[Track]] = {}
    for track in tracks:
        at = _first_swap(track, usual)
        if at is not None:
            swaps.setdefault(at, []).append(track)
    for number, odd in sorted(swaps.items()):
        if len(tracks) > 2 and 2 * len(odd) >= len(tracks):
            return
        first, other = usual.call(number), odd[0].call(number)
        if first is not None and other is not None:
            when = min(t.timeline.wall(int(t.row(number)["entered_ns"])) for t in odd)  # type: ignore[index]
            ranks = {track.rank for track in odd} | ({usual.rank} if len(tracks) == 2 else set())
            yield first, other, tuple(sorted(ranks)), when
            return


def _usual(tracks: list[Track]) -> Track | None:
    """A rank that goes through the lines that most ranks go through."""
    least = min(track.count for track in tracks)
    prefixes = {}
    for track in tracks:
        row = track.row(least)
        if row is not None:
            prefixes[track.rank] = int(row["site_prefix"])
    if not prefixes:
        return None
    prefix, votes = Counter(prefixes.values()).most_common(1)[0]
    if 2 * votes <= len(tracks):
        return None
    return next(track for track in tracks if prefixes.get(track.rank) == prefix)


def _first_swap(track: Track, usual: Track) -> int | None:
    if track is usual:
        return None
    first, last = max(track.first, usual.first), min(track.count, usual.count)
    if last - first < 1:
        return None
    mine, theirs = _lines(track, first, last), _lines(usual, first, last)
    if mine is None or theirs is None or len(mine) != len(theirs):
        return None
    differs = mine != theirs
    crossed = (mine[:-1] == theirs[1:]) & (mine[1:] == theirs[:-1]) & differs[:-1]
    found = np.flatnonzero(crossed)
    # Ranks that take another path through the source differ nearly everywhere; a swap stands alone among lines that agree.
    if not len(found) or differs.sum() > 2 * len(found) + 0.1 * len(differs):
        return None
    return first + int(found[0])


def _lines(track: Track, first: int, last: int) -> np.ndarray | None:
    """Per call a number for its line, equal on all ranks for equal lines."""
    rows = track.rows
    at = int(np.searchsorted(rows["number"], first))
    rows = rows[at : at + last - first + 1]
    if len(rows) != last - first + 1:
        return None
    ids, inverse = np.unique(rows["site"], return_inverse=True)
    words = np.array([hash(track.timeline.log.text(int(number))) for number in ids], dtype=np.int64)
    return words[inverse]
