"""Epochs that repeat the order of the epoch before, although their sampler shuffles."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.data.samples import CERTAIN_DIGITS, LoaderPass, SampleOrders, same_order
from distdoctor.diagnosis.source.sampler_calls import draws_no_order
from distdoctor.recording.trace.layout import PassFlag

LEAST_DRAWS = 32  # a live verdict waits for so many, whatever the chance


@dataclass(frozen=True)
class Repetition:
    """Two training passes of one loader with one order. `epoch` counts the training passes of the loader from 0.

    `draws`: how many leading draws were compared, all equal; `digits`: -log10 of the chance of that, over all `ranks`.
    """

    earlier: LoaderPass
    later: LoaderPass
    ranks: tuple[int, ...]
    epoch: int
    draws: int
    digits: float
    told: frozenset[int] = frozenset()  # every epoch that the data were told, over all passes of the loader

    @property
    def chance(self) -> str:
        """`below 10^-30`; smaller chances are not worth more digits."""
        return f"below 10^-{min(30, int(self.digits))}"

    @property
    def told_again(self) -> bool:
        """set_epoch was called between the two passes, with the value that it had been told before."""
        more = self.later.set_epoch_calls > self.earlier.set_epoch_calls
        return more and self.earlier.set_epoch_calls > 0 and self.later.epoch_told == self.earlier.epoch_told

    @property
    def goes_on(self) -> bool:
        """Whether the epoch is counted all the same, so that passes over one order may be meant: each of them twice."""
        return len(self.told) > 1

    @property
    def iterable(self) -> bool:
        """The data shuffle by themselves, and their samples have no index: batches were compared by their first samples."""
        return bool(self.later.flags & PassFlag.ITERABLE)

    @property
    def sharded(self) -> bool:
        """The sampler deals out by rank as torch's does, or was told an epoch, or says that it shuffles."""
        return self.later.num_replicas > 0 or self.later.shuffles is True or self.later.set_epoch_calls > 0

    @property
    def told_in_vain(self) -> bool:
        """The epoch was told, another one than before, and the order has not changed."""
        more = self.later.set_epoch_calls > self.earlier.set_epoch_calls
        return self.iterable and more and self.later.epoch_told != self.earlier.epoch_told

    @property
    def outdated(self) -> bool:
        """What the epoch was told to is not what the workers read: they hold copies of what it was before."""
        return self.told_in_vain and self.later.outdated


def repetitions(orders: SampleOrders, sources: Mapping[str, str]) -> Iterator[Repetition]:
    """The first repetition of each loader, over all ranks that repeat there; a coincidence is left out, and so is a
    sampler of the user's that always deals out one course."""
    found: dict[tuple[str, str, int], list[tuple[LoaderPass, LoaderPass, int]]] = defaultdict(list)
    told: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for rank in orders.by_rank:
        for passes in orders.by_loader(rank).values():
            first = _first_repetition([one for one in passes if one.trains])
            if first is not None and not draws_no_order(sources, first[1].sampler.split(">")):
                earlier, later, epoch = first
                key = str(later.loop_line), str(later.made_line), epoch
                found[key].append(first)
                told[key].update(one.epoch_told for one in passes if one.trains and one.set_epoch_calls)
    for key, pairs in sorted(found.items(), key=lambda item: item[0][2]):
        earlier, later, _ = pairs[0]
        digits = sum(_digits(before, one) for before, one, _ in pairs)
        if digits >= CERTAIN_DIGITS:
            ranks = tuple(one.rank for _, one, _ in pairs)
            yield Repetition(earlier, later, ranks, key[2], _compared(earlier, later), digits, frozenset(told[key]))


def _first_repetition(passes: list[LoaderPass]) -> tuple[LoaderPass, LoaderPass, int] | None:
    for place in range(1, len(passes)):
        earlier, later = passes[place - 1], passes[place]
        if not _repeats(earlier, later):
            continue
        if earlier.exhausted or (place > 1 and _repeats(passes[place - 2], earlier)):
            return earlier, later, _epoch(passes, place)
    return None


def _epoch(passes: list[LoaderPass], place: int) -> int:
    """Which training epoch of its loader this is, from 0; passes that the ring has forgotten are counted."""
    return place + passes[0].number - 1 if passes[0].number > 1 else place


def _digits(earlier: LoaderPass, later: LoaderPass) -> float:
    """-log10 of the chance of such a repetition; of iterable data, that of different batches in one order of all they have."""
    n = _compared(earlier, later)
    if later.flags & PassFlag.ITERABLE:
        return math.lgamma(len(np.unique(later.first[:n])) + 1) / math.log(10)
    return later.chance_digits(n)


def _repeats(earlier: LoaderPass, later: LoaderPass) -> bool:
    """Whether `later`, begun when `earlier` was over, shuffles and draws in its order all the same."""
    interleaved = earlier.exhausted and earlier.ended_ns > later.started_ns
    if interleaved or later.flags & PassFlag.REPLACEMENT:
        return False
    if not (_streamshould_differ(earlier, later) if later.flags & PassFlag.ITERABLE else should_differ(later)):
        return False
    if earlier.optimizer != later.optimizer:
        return False  # another training in the same process begins as the one before it began
    if earlier.length != later.length or earlier.data.digest != later.data.digest:
        return False
    n = _compared(earlier, later)
    enough = n >= LEAST_DRAWS or (later.exhausted and n == later.drawn)
    return n > 1 and enough and same_order(earlier, later)


def _compared(earlier: LoaderPass, later: LoaderPass) -> int:
    return min(len(earlier.first), len(later.first))


def _streamshould_differ(earlier: LoaderPass, later: LoaderPass) -> bool:
    """Iterable data that can be told the epoch and say that they shuffle; or that have a seed, and no new epoch was told to them.

    Those that only have a seed may use it for something else, whatever they are told. What is told to data whose workers persist
    reaches a copy that nobody reads: whether they shuffle is for the source to say then.
    """
    if not later.flags & PassFlag.TELLABLE or later.shuffles is False or later.flags & PassFlag.UNORDERED:
        return False
    told_anew = later.set_epoch_calls > earlier.set_epoch_calls and later.epoch_told != earlier.epoch_told
    if later.shuffles is None and told_anew and later.workers:
        return True
    return later.shuffles is True or (later.seed >= 0 and not told_anew)


def should_differ(one: LoaderPass) -> bool:
    """A sampler that is told the epoch and says that it shuffles; one that does not say shuffles if its order looks so."""
    told_epochs = one.num_replicas > 0 or one.set_epoch_calls > 0 or "Distributed" in one.sampler
    told_epochs = told_epochs or bool(one.flags & PassFlag.TELLABLE)
    if not told_epochs or one.shuffles is False:
        return False
    if one.shuffles:
        return True
    steps = np.diff(one.first.astype(np.int64))
    return len(steps) > 1 and float((steps < 0).mean()) > 0.25
