"""Who drew what: one account for each loader and epoch, with what ranks share, what nobody drew, and which order came back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import numpy as np

from distdoctor.diagnosis.data.samples import (
    MATRIX_RANKS,
    LoaderPass,
    Overlap,
    SampleOrders,
    Together,
    comparable_indices,
    drawn_sets,
    overlap,
    same_order,
    unseen,
)
from distdoctor.diagnosis.derived import derived
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.recording.trace.sample_bitmap import SampleBitmap, in_common

LEAST_DRAWS = 2  # one draw is in the same order as any other


@dataclass(frozen=True)
class Share:
    """What one rank drew in one epoch. `distinct` and `padding` are numbers of samples; `same_as`: the earlier epoch whose order
    this one repeats, -1 for none. `over`: all that the loader has was read."""

    rank: int
    drawn: int
    distinct: int
    padding: int
    same_as: int
    over: bool


@dataclass(frozen=True, eq=False)
class EpochAccount:
    """One epoch of one loader. Numbers of samples, exact unless `keep_one_in` is above 1: then they are estimates from one index
    in so many, as the sets of all samples could not be kept.

    `unseen` -1: not to be told (the loader was left early, or what it held is not known). `shared`: drawn by more than one rank,
    padding left out; `pairs`: (rank, rank, how many both drew), pairs that share nothing left out. Not `comparable`: the ranks'
    data sets differ, or `without_index` their samples have none. `dropped`: what is unseen fits into an incomplete batch on each
    rank.
    """

    number: int
    shares: tuple[Share, ...]
    length: int
    shared: int
    pairs: tuple[tuple[int, int, int], ...]
    unseen: int
    keep_one_in: int
    comparable: bool
    without_index: bool = False
    dropped: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(share.rank for share in self.shares)


@dataclass(frozen=True, eq=False)
class LoaderAccount:
    """One loader (one made anew on the same line for each epoch counts as one). `purpose`: trains, evaluates, read."""

    made_line: SourceLine
    loop_line: SourceLine
    purpose: str
    one: LoaderPass
    epochs: tuple[EpochAccount, ...]


@dataclass(frozen=True)
class SampleAccounts:
    """The account of every loader, in the order in which they were first read."""

    loaders: tuple[LoaderAccount, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        return cls(tuple(accounts(derived(SampleOrders, recording))))


def accounts(orders: SampleOrders) -> list[LoaderAccount]:
    found: dict[tuple[object, ...], list[Together]] = defaultdict(list)
    for together in everything(orders):
        one = together.one
        # A library's own loader has no line of the user's: there the loader's number and size tell one from another.
        known = 0 if one.made_line or one.loop_line else (one.loader, one.length)
        found[_purpose(together), str(one.made_line), str(one.loop_line), known].append(together)
    return [_account(str(purpose), epochs) for (purpose, *_), epochs in found.items()]


def everything(orders: SampleOrders) -> Iterator[Together]:
    """What ranks read side by side, and what one rank read alone, by the time of its beginning."""
    together = list(orders.together())
    taken = {(rank, one.seq) for group in together for rank, one in group.passes.items()}
    alone = [
        Together({rank: one})
        for rank, passes in orders.by_rank.items()
        for one in passes
        if (rank, one.seq) not in taken
    ]
    yield from sorted([*together, *alone], key=lambda group: min(one.started_ns for one in group.passes.values()))


def _purpose(together: Together) -> str:
    return "trains" if together.trains else "evaluates" if together.evaluates else "is read"


def _account(purpose: str, epochs: Sequence[Together]) -> LoaderAccount:
    one = epochs[0].one
    earlier: dict[int, list[tuple[int, LoaderPass]]] = defaultdict(list)
    told = []
    for number, together in enumerate(epochs):
        shares = tuple(_share(p, earlier[rank]) for rank, p in sorted(together.passes.items()))
        told.append(_epoch(number, together.passes, shares))
        for rank, p in together.passes.items():
            earlier[rank].append((number, p))
    return LoaderAccount(one.made_line, one.loop_line, purpose, one, tuple(told))


def _share(one: LoaderPass, earlier: Sequence[tuple[int, LoaderPass]]) -> Share:
    if one.keep_one_in > 1 and one.drawn_set is not None:
        distinct = len(one.drawn_set) + int(np.count_nonzero(~one.drawn_set.holds(np.unique(one.padding))))
    else:
        again = len(np.setdiff1d(one.padding, one.indices)) if len(one.padding) else 0
        different = len(np.unique(one.indices)) * one.keep_one_in + again
        distinct = min(one.drawn, different)
    same = (number for number, before in earlier if _same(before, one))
    return Share(one.rank, one.drawn, distinct, len(one.padding), next(same, -1), one.read_all)


def _same(one: LoaderPass, other: LoaderPass) -> bool:
    n = min(len(one.first), len(other.first))
    alike = (one.length, one.data.outer) == (other.length, other.data.outer)
    return n >= LEAST_DRAWS and alike and same_order(one, other)


def _epoch(number: int, passes: Mapping[int, LoaderPass], shares: tuple[Share, ...]) -> EpochAccount:
    every = list(passes.values())
    one = every[0]
    comparable = all(p.comparable and one.data.same_content(p.data) for p in every)
    shared, pairs, missing, keep = _compared(every) if comparable else (0, (), -1, max(p.keep_one_in for p in every))
    return EpochAccount(
        number=number,
        shares=shares,
        length=one.data.length if one.flags & PassFlag.TRANSLATED else one.length,
        shared=shared,
        pairs=pairs,
        unseen=missing,
        keep_one_in=keep,
        comparable=comparable,
        without_index=not all(p.comparable for p in every),
        dropped=0 < missing < sum(p.batch_size for p in every),
    )


def _compared(every: Sequence[LoaderPass]) -> tuple[int, tuple[tuple[int, int, int], ...], int, int]:
    """(samples shared, by which pairs, how many unseen, one in how many was looked at)."""
    sets = drawn_sets(every) if any(p.keep_one_in > 1 for p in every) else None
    if sets is not None:
        return _counted([p.rank for p in every], every, sets)
    keep = max(p.keep_one_in for p in every)
    alike = overlap(every) if len(every) > 1 else None
    return (
        alike.shared * keep if alike else 0,
        _pairs(every, alike) if alike and alike.shared else (),
        _unseen(every),
        keep,
    )


def _counted(
    ranks: Sequence[int], every: Sequence[LoaderPass], sets: Sequence[SampleBitmap]
) -> tuple[int, tuple[tuple[int, int, int], ...], int, int]:
    common = in_common(sets, pairs=len(sets) <= MATRIX_RANKS)
    padding = np.unique(np.concatenate([p.padding for p in every]))
    again = np.logical_or.reduce([one.holds(padding) for one in sets])
    missing = sets[0].length - common.union - int(np.count_nonzero(~again))
    pairs = tuple((ranks[a], ranks[b], n) for (a, b), n in common.pairs.items() if n)
    if common.shared and not pairs:
        pairs = overlap(every).pairs
    return common.shared, pairs, missing if all(p.read_all for p in every) else -1, 1


def _pairs(passes: Sequence[LoaderPass], alike: Overlap) -> tuple[tuple[int, int, int], ...]:
    if len(passes) > MATRIX_RANKS:
        return alike.pairs
    lists, keep = comparable_indices(passes)
    drawn = {p.rank: np.unique(indices) for p, indices in zip(passes, lists, strict=True)}
    counts = [
        (a, b, keep * len(np.intersect1d(drawn[a], drawn[b], assume_unique=True))) for a, b in combinations(drawn, 2)
    ]
    return tuple(pair for pair in counts if pair[2])


def _unseen(passes: Sequence[LoaderPass]) -> int:
    length = passes[0].data.length
    if length < 0 or not all(p.whole and p.read_all for p in passes):
        return -1
    return len(unseen(passes, length)) * max(p.keep_one_in for p in passes)
