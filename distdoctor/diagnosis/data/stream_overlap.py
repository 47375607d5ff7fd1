"""Samples of iterable data that come to several ranks, although the user's source deals the stream out by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from distdoctor.diagnosis.data.samples import Indices, LoaderPass, SampleOrders, Together
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.source.stream_shares import StreamShare, stream_share
from distdoctor.recording.trace.layout import PassFlag

LEAST_SHARED = 8  # first samples of batches in all passes of a loader: 256 bits of agreement
LEAST_OF_RANKS = 1  # where the source shows that each rank shuffles by a seed of its own before it takes its share
LEAST_PART = 16  # one in so many of them


@dataclass(frozen=True, eq=False)
class SharedStream:
    """`shared` different batches, of `compared` in the passes of one rank, began with one sample on several ranks.

    `pairs`: (rank, rank, how many), the largest first. `seeds` by rank, where the data hold one.
    """

    passes: Together
    share: StreamShare
    shared: int
    compared: int
    pairs: tuple[tuple[int, int, int], ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for first, second, _ in self.pairs for rank in (first, second)}))

    @property
    def seeds(self) -> dict[int, int]:
        found = {rank: one.seed for rank, one in self.passes.passes.items()}
        return found if len(set(found.values())) > 1 else {}


def shared_streams(orders: SampleOrders, replicas: Replicas, sources: Mapping[str, str]) -> Iterator[SharedStream]:
    """One per loader of which whole training passes overlap. A pass in which a sample comes twice proves nothing: the data
    may hold it twice, or draw with replacement."""
    for known in replicas.sets:
        by_loader: dict[tuple[str, str], list[Together]] = defaultdict(list)
        for together in orders.together():
            passes = together.among(known.ranks)
            if together.trains and len(passes.passes) > 1 and all(map(_is_whole_stream, passes.passes.values())):
                by_loader[str(passes.one.made_line), passes.one.data.name].append(passes)
        for sets in by_loader.values():
            one = sets[0].one
            differ = all(map(_has_no_repeats, sets)) and not all(map(_is_one_stream, sets))
            share = stream_share(sources, one.data.name, one.made_line) if differ and _shared_pairs(sets, 1) else None
            pairs = _shared_pairs(sets, LEAST_OF_RANKS if share.by_rank else LEAST_SHARED) if share is not None else {}
            if share is not None and pairs:
                yield _shared(sets, share, pairs)


def _is_whole_stream(one: LoaderPass) -> bool:
    return bool(one.flags & PassFlag.ITERABLE) and one.exhausted and not one.flags & PassFlag.REPLACEMENT


def _has_no_repeats(together: Together) -> bool:
    return all(len(_read(one)) == len(np.unique(_read(one))) for one in together.passes.values())


def _is_one_stream(together: Together) -> bool:
    """Whether all ranks read the same in the same order: then nobody has dealt it out, whatever the source holds."""
    first = together.one
    return all(np.array_equal(first.indices, other.indices) for other in together.passes.values())


def _read(one: LoaderPass) -> Indices:
    """Fingerprints of first samples; 0 stands for one that could not be read.

    Without the last batch of each worker: it may be filled up with samples that another rank has, too.
    """
    indices = one.indices[: max(0, len(one.indices) - max(1, one.workers))]
    readable: Indices = indices[indices != 0]
    return readable


def _shared_pairs(sets: Sequence[Together], least: int) -> dict[tuple[int, int], int]:
    """(rank, rank) -> how many first samples they share, counted pass by pass; none of less than `least`, or, of more than one,
    than their part of what was compared."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    compared: dict[tuple[int, int], int] = defaultdict(int)
    for together in sets:
        for (a, one), (b, other) in combinations(together.passes.items(), 2):
            found[a, b] += len(np.intersect1d(_read(one), _read(other)))
            compared[a, b] += min(len(_read(one)), len(_read(other)))
    return {pair: n for pair, n in found.items() if n >= max(least, compared[pair] / LEAST_PART if least > 1 else 0)}


def _shared(sets: Sequence[Together], share: StreamShare, pairs: Mapping[tuple[int, int], int]) -> SharedStream:
    ordered = sorted(((a, b, n) for (a, b), n in pairs.items()), key=lambda pair: (-pair[2], pair[0], pair[1]))
    first, _, most = ordered[0]
    return SharedStream(
        passes=sets[0],
        share=share,
        shared=most,
        compared=sum(len(_read(together.passes[first])) for together in sets if first in together.passes),
        pairs=tuple(ordered[:16]),
    )
