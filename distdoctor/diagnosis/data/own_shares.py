"""Ranks that read shares of data without a loader, each in an order of its own: the shares overlap.

What wrapped models are given tells samples apart. Until a rank is given one for the second time it is in its first epoch, in
which each takes one share in `world` of the data. Shares of one order have nothing in common, those of orders that have nothing
to do with one another one sample in `world`. Who draws with replacement meets a sample again long before, and who reads
all data in an order of its own has them all in common with the others. Or a rank goes over the data right behind another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, Self

import numpy as np

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.data.samples import Indices, LoaderPass, passes_of
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import PassFlag

LEAST = 32  # samples that pairs of ranks have in common, together
MOST_PAIRS = 64
BEHIND = 0.25  # of what a rank was given; who begins further away reads all data, from another end
FOLLOWING = 0.95  # of what two ranks have in common, and of what they could have
FROM, UNTIL = 0.6, 1.5  # of what orders of their own would have in common: 32 samples are off by a third once in 16


@dataclass(frozen=True)
class GivenSamples:
    """What wrapped models were given, of each rank that trains without a loader."""

    streams: ClassVar[frozenset[str]] = frozenset({"samples"})
    by_rank: Mapping[int, LoaderPass]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        every = {rank: list(passes_of(log, exactly=False)) for rank, log in recording.ranks.items()}
        by_loader = any(one.trains for own in every.values() for one in own if not one.flags & PassFlag.GIVEN)
        given = {rank: one for rank, own in every.items() for one in own if one.flags & PassFlag.GIVEN}
        if by_loader or not given:
            raise NotApplicable("no wrapped model was given rows without a loader")
        return cls(given)


@dataclass(frozen=True)
class OwnShares:
    """`pairs`: (rank, rank, how many samples both were given); `drawn`: by each rank, in its first epoch."""

    replicas: ReplicaSet
    drawn: Mapping[int, int]
    pairs: tuple[tuple[int, int, int], ...]
    first: LoaderPass


def own_shares(samples: GivenSamples, replicas: Replicas) -> Iterator[OwnShares]:
    """Of each set of replicas."""
    for known in replicas.sets:
        given = {rank: samples.by_rank[rank] for rank in known.ranks if rank in samples.by_rank}
        epochs = {rank: _first_epoch(one) for rank, one in given.items()}
        whole = {rank: epoch for rank, epoch in epochs.items() if epoch is not None}
        if len(known.ranks) == len(whole) > 1:
            halves = {rank: epoch[: len(epoch) // 2] for rank, epoch in whole.items()}
            pairs, early = _common(known.ranks, whole), _common(known.ranks, halves)
            # Shares that are dealt anew in each epoch have only later ones in common.
            if _are_unrelated(whole, pairs) and _sum(early) >= FROM * _sum(pairs) / 4:
                drawn = {rank: len(epoch) for rank, epoch in whole.items()}
                yield OwnShares(known, drawn, tuple(pairs), given[known.ranks[0]])


def _common(ranks: Sequence[int], whole: Mapping[int, Indices]) -> list[tuple[int, int, int]]:
    """(rank, rank, how many samples both have)."""
    return [
        (one, other, len(np.intersect1d(whole[one], whole[other], assume_unique=True)))
        for one, other in list(combinations(ranks, 2))[:MOST_PAIRS]
    ]


def _sum(pairs: Sequence[tuple[int, int, int]]) -> int:
    return sum(shared for _, _, shared in pairs)


@dataclass(frozen=True)
class Trailing:
    """`rank` was given what `leader` had been given `lag` samples before: `shared` samples of `drawn`."""

    replicas: ReplicaSet
    rank: int
    leader: int
    lag: int
    shared: int
    drawn: int
    first: LoaderPass


def trailing(samples: GivenSamples, replicas: Replicas) -> Iterator[Trailing]:
    """Of each set of replicas the first pair of which one goes over the data right behind the other: each begins at an offset of
    its own, and both go on by the batch of one."""
    for known in replicas.sets:
        given = {rank: samples.by_rank[rank] for rank in known.ranks if rank in samples.by_rank}
        pairs = list(combinations(sorted(given), 2))[:MOST_PAIRS]
        found = (_behind(known, given[one], given[other], one, other) for one, other in pairs)
        yield from [first for first in found if first is not None][:1]


def _behind(known: ReplicaSet, one: LoaderPass, other: LoaderPass, rank: int, leader: int) -> Trailing | None:
    """None where neither of the two comes right behind the other."""
    mine, theirs = _until_one_comes_again(one.indices), _until_one_comes_again(other.indices)
    common, at, before = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    if len(common) < LEAST:
        return None
    lag = int(np.median(at - before))
    if lag < 0:
        return _behind(known, other, one, leader, rank)
    drawn = min(len(mine), len(theirs))
    steady = np.count_nonzero(at - before == lag)
    near = 0 < lag <= BEHIND * drawn
    if not near or steady < FOLLOWING * len(common) or len(common) < FOLLOWING * (drawn - lag):
        return None
    return Trailing(known, rank, leader, lag, len(common), drawn, one)


def _until_one_comes_again(rows: Indices) -> Indices:
    _, at = np.unique(rows, return_index=True)
    again = np.ones(len(rows), bool)
    again[at] = False
    found: Indices = rows[: int(np.flatnonzero(again)[0])] if again.any() else rows
    return found


def _first_epoch(given: LoaderPass) -> Indices | None:
    """The samples up to the first one that comes again; None where none does, or some are missing in between."""
    rows = given.indices
    found = _until_one_comes_again(rows)
    return None if not given.whole or len(found) == len(rows) or given.flags & PassFlag.TRUNCATED else found


def _are_unrelated(whole: Mapping[int, Indices], pairs: Sequence[tuple[int, int, int]]) -> bool:
    """Whether all have as much in common with all as orders of their own have."""
    share = sum(map(len, whole.values())) / len(whole)
    wanted = share / len(whole)
    counts = [shared for _, _, shared in pairs]
    alike = FROM * wanted <= sum(counts) / len(counts) <= UNTIL * wanted
    return alike and sum(counts) >= LEAST and min(counts) >= FROM * wanted / 2
