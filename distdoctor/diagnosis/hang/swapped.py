"""Two collectives of equal size in the other order on some ranks: nothing hangs, and every result belongs to the other one.

What tells is the source: the lines, the calls that led to a line, and on different lines what is called there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.facts.collectives import GroupCalls, Track
from distdoctor.diagnosis.hang.call_chains import Chain, words_of
from distdoctor.diagnosis.hang.call_chains import chains as chain_table
from distdoctor.diagnosis.source.rank_guard import chosen_by_rank
from distdoctor.recording.recording import Call, SourceLine
from distdoctor.recording.trace.layout import Span
from distdoctor.recording.trace.reader import Rows

Symbol = Callable[[int, str], object]  # of (word of a call, text of its line)


@dataclass(frozen=True)
class Swap:
    """The usual first call and what the odd ranks called first, at the lines that tell them apart.

    `called`: what the source calls there, the odd one first, where that is known. `at_ns` is wall time.
    """

    usual: Call
    odd: Call
    ranks: tuple[int, ...]
    at_ns: int
    called: tuple[str, str] | None = None


def swapped_calls(group: GroupCalls, sources: Mapping[str, str]) -> Iterator[Swap]:
    """The first swap of a group.

    Where the majority goes through two places in turn, the odd ranks go through the same two in the other order, at numbers at
    which they used to agree. Of two ranks both are named: neither is usual. The two branches of a condition have no line in
    common: there the calls are compared as they are written. Where a condition on the rank sends each turn through one place or
    the other (what a rank owns, and what others own), the order differs by design, and so it does with the root.
    """
    tracks = [track for track in group.tracks.values() if track.count]
    if len(tracks) < 2 or len({track.site_prefix for track in tracks if track.count == tracks[0].count}) == 1:
        return
    chains = chain_table(tracks)
    written = _Written(sources)
    for symbol in (_place(chains), written.symbol(chains)) if sources else (_place(chains),):
        found = _swap(tracks, symbol, chains, written)
        if found is not None:
            yield found
            return


def _swap(tracks: list[Track], symbol: Symbol, chains: Mapping[int, Chain], written: _Written) -> Swap | None:
    usual = tracks[0] if len(tracks) == 2 else _usual(tracks)
    if usual is None:
        return None
    swaps: dict[int, list[Track]] = {}
    turns = _Turns(written.sources, chains)
    for track in tracks:
        crossed = (number for number in _swaps(track, usual, symbol) if not turns.are_by_rank(track, usual, number))
        at = next(crossed, None)
        if at is not None:
            swaps.setdefault(at, []).append(track)
    for number, odd in sorted(swaps.items()):
        if len(tracks) > 2 and 2 * len(odd) >= len(tracks):
            return None
        first, other = usual.call(number), odd[0].call(number)
        if first is not None and other is not None:
            when = min(t.timeline.wall(int(t.row(number)["entered_ns"])) for t in odd)  # type: ignore[index]
            ranks = {track.rank for track in odd} | ({usual.rank} if len(tracks) == 2 else set())
            found = Swap(first, other, tuple(sorted(ranks)), when)
            mine, theirs = (chains.get(int(words_of(t, number, number)[0]), []) for t in (odd[0], usual))
            return _told_apart(found, mine, theirs, written)
    return None


def _told_apart(swap: Swap, odd: Chain, usual: Chain, written: _Written) -> Swap:
    """The swap at the innermost calls that differ: what one line of a helper issues is told apart by who called the helper."""
    for mine, theirs in zip(odd, usual, strict=False):
        if mine == theirs:
            continue
        called = written.call(mine), written.call(theirs)
        sites = [SourceLine(path, span[0], function) for path, span, function in (mine, theirs)]
        return replace(
            swap,
            odd=replace(swap.odd, site=sites[0]),
            usual=replace(swap.usual, site=sites[1]),
            called=called if all(called) and called[0] != called[1] else None,
        )
    return swap


def _place(chains: Mapping[int, Chain]) -> Symbol:
    """Calls are told apart by where they and their callers stand; by their line alone where no more is recorded."""
    return lambda word, site: word if word in chains else site


@dataclass(frozen=True)
class _Written:
    """The source, for calls as they are written in it."""

    sources: Mapping[str, str]

    def symbol(self, chains: Mapping[int, Chain]) -> Symbol:
        """Calls are told apart by what is written there, in which functions."""

        def symbol(word: int, site: str) -> object:
            chain = chains.get(word)
            if chain is None:
                return site
            return tuple((path, function, self.call((path, span, function)) or span) for path, span, function in chain)

        return symbol

    def call(self, one: tuple[str, Span, str]) -> str:
        """`dist.all_reduce(a)`; the line where Python tells no columns, "" without the source."""
        path, (line, last, column, end), _ = one
        lines = self.sources.get(path, "").splitlines()[line - 1 : last]
        if not lines or line < 1:
            return ""
        if column >= 0:
            lines[-1] = lines[-1].encode()[:end].decode("utf-8", "ignore")
            lines[0] = lines[0].encode()[column:].decode("utf-8", "ignore")
        return " ".join(" ".join(lines).split())


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


def _swaps(track: Track, usual: Track, symbol: Symbol) -> list[int]:
    """The numbers at which a rank first issues two calls that the usual one issues in the other order: one of each pair."""
    first, last = max(track.first, usual.first), min(track.count, usual.count)
    if track is usual or last - first < 1:
        return []
    mine, theirs = _symbols(track, first, last, symbol), _symbols(usual, first, last, symbol)
    if mine is None or theirs is None or len(mine) != len(theirs):
        return []
    differs = mine != theirs
    crossed = (mine[:-1] == theirs[1:]) & (mine[1:] == theirs[:-1]) & differs[:-1]
    found = np.flatnonzero(crossed)
    # Ranks that take another path through the source differ nearly everywhere; a swap stands alone among lines that agree.
    if not len(found) or differs.sum() > 2 * len(found) + 0.1 * len(differs):
        return []
    _, firsts = np.unique(np.column_stack((mine[found], mine[found + 1])), axis=0, return_index=True)
    return [first + int(found[at]) for at in sorted(firsts)]


@dataclass(frozen=True)
class _Turns:
    """Which successive calls are those of two turns, of which a condition on the rank sends each another way."""

    sources: Mapping[str, str]
    chains: Mapping[int, Chain]
    _known: dict[tuple[SourceLine, SourceLine], bool] = field(default_factory=dict)

    def are_by_rank(self, track: Track, usual: Track, number: int) -> bool:
        return all(self._is_by_rank(one, number) for one in (track, usual))

    def _is_by_rank(self, track: Track, number: int) -> bool:
        one, other = track.call(number), track.call(number + 1)
        if one is None or other is None:
            return False
        pair = _apart(*(self.chains.get(int(word), []) for word in words_of(track, number, number + 1)))
        sites = (pair[0], pair[1]) if pair else (one.site, other.site)
        if sites not in self._known:
            self._known[sites] = chosen_by_rank(self.sources, *sites)
        return self._known[sites]


def _apart(one: Chain, other: Chain) -> tuple[SourceLine, SourceLine] | None:
    """The innermost of the calls that led to two collectives in which they differ."""
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return SourceLine(mine[0], mine[1][0], mine[2]), SourceLine(theirs[0], theirs[1][0], theirs[2])
    return None


def _symbols(track: Track, first: int, last: int, symbol: Symbol) -> NDArray[np.int64] | None:
    """Per call a number for what tells it apart, equal on all ranks for equal calls."""
    words, rows = words_of(track, first, last), _rows(track, first, last)
    if len(words) != last - first + 1:
        return None
    both = np.empty(len(words), dtype=[("word", "<u8"), ("site", "<u4"), ("root", "<i8")])
    both["word"], both["site"], both["root"] = words, rows["site"], rows["root"]
    kinds, inverse = np.unique(both, return_inverse=True)
    text = track.timeline.log.text
    numbers = [hash((symbol(int(kind["word"]), text(int(kind["site"]))), int(kind["root"]))) for kind in kinds]
    return np.array(numbers, dtype=np.int64)[inverse]


def _rows(track: Track, first: int, last: int) -> Rows:
    at = int(np.searchsorted(track.rows["number"], first))
    rows: Rows = track.rows[at : at + last - first + 1]
    return rows
