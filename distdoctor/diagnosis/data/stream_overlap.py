"""Samples that come to several ranks by their content, of iterable data or of data that each rank has made for itself, although
the user's source deals them out by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Self

import numpy as np

from distdoctor.diagnosis.data.samples import Indices, LoaderPass, SampleOrders, Together, thinned
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.source.stream_shares import StreamShare, stream_share
from distdoctor.recording.trace.layout import PassFlag

LEAST_SHARED = 8  # fingerprints in all passes of a loader: 256 bits of agreement
LEAST_OF_RANKS = 1  # where the source shows that each rank shuffles by a seed of its own before it takes its share
LEAST_PART = 16  # one in so many of them
# Samples that came to two ranks, of those that could have, where both have read all of it: the ends of passes are not compared.
WHOLE, LEAST_OF_WHOLE = 0.8, 64


@dataclass(frozen=True, eq=False)
class SharedStream:
    """`shared` different samples, of `compared` in the passes of one rank, came to several ranks; or, with `by_batches`, so many
    batches began with one of them.

    `pairs`: (rank, rank, how many), the largest first. `seeds` by rank, where the data hold one. One in `one_in` was compared.
    """

    passes: Together
    share: StreamShare
    shared: int
    compared: int
    pairs: tuple[tuple[int, int, int], ...]
    by_batches: bool
    one_in: int = 1

    @property
    def of_stream(self) -> bool:
        """Of iterable data, not of a data set that each rank has made."""
        return bool(self.passes.one.flags & PassFlag.ITERABLE)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for first, second, _ in self.pairs for rank in (first, second)}))

    @property
    def seeds(self) -> dict[int, int]:
        found = {rank: one.seed for rank, one in self.passes.passes.items()}
        return found if len(set(found.values())) > 1 else {}


def shared_streams(orders: SampleOrders, replicas: Replicas, sources: Mapping[str, str]) -> Iterator[SharedStream]:
    """One per loader of which training passes overlap. A pass in which a sample comes twice proves nothing: the data may hold it
    twice, or draw with replacement. Of passes that were not read to their end, the first of as many parts as there are ranks is
    compared: a stream that begins anew by itself may deal out other shares then, and it takes as many turns until the last of
    them is dealt out and a sample comes again."""
    whole = [(sets, _Compared.of(sets)) for _, sets in _read_to_the_end(orders, replicas)]
    in_part = [[one for one in sets if not _is_one_stream(one)] for _, sets in _read_in_part(orders, replicas)]
    cut = [(sets, _Compared.of(sets)) for sets in in_part if sets]
    for sets, found in (*whole, *((sets, found.first_parts()) for sets, found in cut if found.is_without_repeats)):
        one = sets[0].one
        differ = found.is_without_repeats and not all(map(_is_one_stream, sets))
        share = stream_share(sources, one.data.name, one.made_line) if differ and found.shared_pairs(1) else None
        if share is not None:
            alone = share.by_rank and found.by_batches
            pairs = found.shared_pairs(LEAST_OF_RANKS if alone else LEAST_SHARED)
            if pairs:
                yield _shared(sets, share, found, pairs)


@dataclass(frozen=True, eq=False)
class WholeStream:
    """Every rank has read the same samples of iterable data, each in an order of its own: to their end, or, where there is none
    (`endless`), before any came again. `shared`: by the two ranks that share the fewest; one in `one_in` was compared."""

    passes: Together
    endless: bool
    replicas: ReplicaSet
    shared: int
    one_in: int


def whole_streams(orders: SampleOrders, replicas: Replicas, sources: Mapping[str, str]) -> Iterator[WholeStream]:
    """One per loader whose training passes hold the same samples on all ranks, where the source deals nothing out by rank."""
    for known, sets in _read_to_the_end(orders, replicas):
        found = _Compared.of(sets)
        streams = all(map(_is_whole_stream, (each for together in sets for each in together.passes.values())))
        if streams and not found.by_batches and found.is_without_repeats:
            yield from _of_all_ranks(sets, known, found, sources)
    for known, sets in _read_in_part(orders, replicas):
        for together in sets:
            yield from _of_all_ranks([together], known, _Compared.of([together]).before_repeats(), sources)


def _of_all_ranks(
    sets: list[Together], known: ReplicaSet, found: _Compared, sources: Mapping[str, str]
) -> Iterator[WholeStream]:
    one, ranks = sets[0].one, sets[0].ranks
    alike = any(_is_one_stream(together) for together in sets if len(together.one.indices))
    pairs = found.shared_pairs(LEAST_OF_WHOLE, WHOLE) if not alike else {}
    every = len(pairs) == len(ranks) * (len(ranks) - 1) // 2
    if every and stream_share(sources, one.data.name, one.made_line) is None:
        yield WholeStream(sets[0], _has_no_end(one), known, min(pairs.values()), found.one_in)


def _read_to_the_end(orders: SampleOrders, replicas: Replicas) -> Iterator[tuple[ReplicaSet, list[Together]]]:
    """The training passes of each loader that replicas have read to their end, where its samples can be told by their content."""

    def ended(passes: Together) -> bool:
        return all(map(_is_whole_stream, passes.passes.values())) or _have_data_of_their_own(passes)

    return _by_loader(orders, replicas, ended)


def _read_in_part(orders: SampleOrders, replicas: Replicas) -> Iterator[tuple[ReplicaSet, list[Together]]]:
    """The same of iterable data that were not read to their end, if they have any."""
    return _by_loader(orders, replicas, lambda passes: all(map(_has_no_end, passes.passes.values())))


def _by_loader(
    orders: SampleOrders, replicas: Replicas, wanted: Callable[[Together], bool]
) -> Iterator[tuple[ReplicaSet, list[Together]]]:
    for known in replicas.sets:
        by_loader: dict[tuple[str, str], list[Together]] = defaultdict(list)
        for together in orders.together():
            passes = together.among(known.ranks)
            if together.trains and len(passes.passes) > 1 and wanted(passes):
                by_loader[str(passes.one.made_line), passes.one.data.name].append(passes)
        yield from ((known, sets) for sets in by_loader.values())


def _has_no_end(one: LoaderPass) -> bool:
    flags = one.flags
    return (
        bool(flags & PassFlag.ITERABLE) and not one.exhausted and len(one.rows) > 0 and not flags & PassFlag.REPLACEMENT
    )


def _is_whole_stream(one: LoaderPass) -> bool:
    return bool(one.flags & PassFlag.ITERABLE) and one.exhausted and not one.flags & PassFlag.REPLACEMENT


def _have_data_of_their_own(together: Together) -> bool:
    """Whether each rank has read a data set to its end that is not that of another rank, and its samples are known."""
    every = list(together.passes.values())
    return all(one.read_all and len(one.rows) and one.data.length > 0 for one in every) and not any(
        one.data.same_content(other.data) for one, other in combinations(every, 2)
    )


def _is_one_stream(together: Together) -> bool:
    """Whether all ranks read the same in the same order: then nobody has dealt it out, whatever the source holds."""
    first = together.one
    return bool(first.flags & PassFlag.ITERABLE) and all(
        np.array_equal(first.indices, other.indices) for other in together.passes.values()
    )


@dataclass(frozen=True, eq=False)
class _Compared:
    """What was read of each rank in each pass: fingerprints of all its samples, where they were taken, else of the first one of
    each batch. The last batch of each worker is left out: it may be filled up with samples that another rank has, too."""

    read: tuple[Mapping[int, Indices], ...]
    parts: tuple[Mapping[int, float], ...]  # of what came to a rank: where there is no time for it, a batch is left out
    by_batches: bool
    one_in: int

    @classmethod
    def of(cls, sets: Sequence[Together]) -> Self:
        passes = [one for together in sets for one in together.passes.values()]
        by_rows = [together for together in sets if all(len(one.rows) for one in together.passes.values())]
        if by_rows:
            one_in = max(one.rows_one_in for one in passes)
            rows = tuple({r: _rows(p, one_in) for r, p in one.passes.items()} for one in by_rows)
            return cls(rows, tuple({r: _part(p) for r, p in one.passes.items()} for one in by_rows), False, one_in)
        firsts = tuple({r: _firsts(p) for r, p in one.passes.items()} for one in sets)
        return cls(firsts, tuple(dict.fromkeys(one, 1.0) for one in firsts), True, 1)

    def before_repeats(self) -> Self:
        """What came to each rank before any of it came again."""
        return replace(self, read=tuple({rank: _fresh(rows) for rank, rows in one.items()} for one in self.read))

    def first_parts(self) -> Self:
        """What came to each rank in the first part of each pass, of as many as there are ranks."""
        return replace(
            self, read=tuple({r: rows[: len(rows) // len(one)] for r, rows in one.items()} for one in self.read)
        )

    @property
    def is_without_repeats(self) -> bool:
        return all(len(one) == len(np.unique(one)) for by_rank in self.read for one in by_rank.values())

    def shared_pairs(self, least: int, part: float = 1 / LEAST_PART) -> dict[tuple[int, int], int]:
        """(rank, rank) -> how many they share, counted pass by pass; none of less than `least`, or, of more than one, than that
        part of what was compared."""
        found: dict[tuple[int, int], int] = defaultdict(int)
        compared: dict[tuple[int, int], float] = defaultdict(float)
        for by_rank, kept in zip(self.read, self.parts, strict=True):
            for (a, one), (b, other) in combinations(by_rank.items(), 2):
                found[a, b] += len(np.intersect1d(one, other))
                compared[a, b] += min(len(one) * kept[b], len(other) * kept[a])
        return {pair: n for pair, n in found.items() if n >= max(least, compared[pair] * part if least > 1 else 0)}


def _fresh(rows: Indices) -> Indices:
    again = np.ones(len(rows), dtype=bool)
    again[np.unique(rows, return_index=True)[1]] = False
    return rows[: int(np.argmax(again))] if again.any() else rows


def _firsts(one: LoaderPass) -> Indices:
    """Of the first samples of batches; 0 stands for one that could not be read."""
    indices = one.indices[: max(0, len(one.indices) - max(1, one.workers))]
    readable: Indices = indices[indices != 0]
    return readable


def _part(one: LoaderPass) -> float:
    return min(1.0, len(one.rows) * one.rows_one_in / max(1, one.batches * one.batch_size))


def _rows(one: LoaderPass, one_in: int) -> Indices:
    rows = one.rows if one.rows_one_in == one_in else thinned(one.rows, one_in)
    return rows[: max(0, len(rows) - max(1, one.workers) * max(1, one.batch_size) // one_in)]


def _shared(
    sets: Sequence[Together], share: StreamShare, found: _Compared, pairs: Mapping[tuple[int, int], int]
) -> SharedStream:
    ordered = sorted(((a, b, n) for (a, b), n in pairs.items()), key=lambda pair: (-pair[2], pair[0], pair[1]))
    first, _, most = ordered[0]
    return SharedStream(
        passes=sets[0],
        share=share,
        shared=most,
        compared=sum(len(by_rank[first]) for by_rank in found.read if first in by_rank),
        pairs=tuple(ordered[:16]),
        by_batches=found.by_batches,
        one_in=found.one_in,
    )
