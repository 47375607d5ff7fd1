"""A training that goes on within its process from what another one there has saved, and draws in the order of an earlier epoch.

The sampler is a new one, of epoch 0, until somebody tells it the epoch under way: who skips the batches that were drawn already
skips those of another order. Or it is told the epoch, and skips too few samples of it. A training that loads no optimizer's
state is a new one, and begins like the first by right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from distdoctor.diagnosis.data.repeated_orders import LEAST_DRAWS
from distdoctor.diagnosis.data.samples import (
    LoaderPass,
    SampleOrders,
    comparable_indices,
    same_order,
)
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.events import Saving, StateLoaded
from distdoctor.recording.trace.layout import PassFlag

LEAST_ROWS = 8  # batches of a stream, which are compared by what is in them


@dataclass(frozen=True)
class ResumedHere:
    """`cut`: the pass in which the first training ended; `resumed`: the first one of the training that goes on; `like`: the pass
    in whose order it draws."""

    cut: LoaderPass
    resumed: LoaderPass
    like: LoaderPass
    ranks: tuple[int, ...]


def resumed_here(orders: SampleOrders, recording: Recording) -> Iterator[ResumedHere]:
    """The first such resumption of each line that makes a loader."""
    found: dict[str, list[ResumedHere]] = defaultdict(list)
    for rank, passes in orders.by_rank.items():
        one = _of_rank([each for each in passes if each.trains], _loads(recording.ranks[rank]))
        if one is not None:
            found[str(one.resumed.made_line)].append(one)
    for same in found.values():
        ranks = tuple(sorted(one.resumed.rank for one in same))
        yield ResumedHere(same[0].cut, same[0].resumed, same[0].like, ranks)


def _of_rank(passes: Sequence[LoaderPass], loads: Sequence[int]) -> ResumedHere | None:
    for at, resumed in enumerate(passes):
        before = [one for one in passes[:at] if _same_data(one, resumed)]
        if len(before) < 2 or resumed.set_epoch_calls or not (resumed.sharded and resumed.shuffles):
            continue
        cut = before[-1]
        under_way = cut.epoch_told > 0 and not cut.read_all and cut.optimizer != resumed.optimizer
        if not under_way or not any(cut.started_ns < load < resumed.started_ns for load in loads):
            continue
        like = next((one for one in before[:-1] if _is_same_order(one, resumed)), None)
        if like is not None and not _is_same_order(cut, resumed):
            return ResumedHere(cut, resumed, like, (resumed.rank,))
    return None


@dataclass(frozen=True)
class DrawnAgain:
    """`repeated` samples of the epoch under way were drawn in the pass that ended the first training (`before` on all ranks
    together), and again in the first one of the training that goes on (`since`). One in `keep_one_in` was compared."""

    cut: LoaderPass
    resumed: LoaderPass
    ranks: tuple[int, ...]
    repeated: int
    before: int
    since: int
    keep_one_in: int


def drawn_again(orders: SampleOrders, recording: Recording) -> Iterator[DrawnAgain]:
    """Epochs that go on with fewer samples than a whole one has, some of which they have had. Only where the training goes on
    from the step in which the first one ended: what is drawn behind an earlier save comes again by right."""
    saved = {event.step for log in recording.ranks.values() for event in log.noted(Saving)}
    found: dict[str, dict[int, tuple[LoaderPass, LoaderPass]]] = defaultdict(dict)
    for rank, passes in orders.by_rank.items():
        loads = _loads(recording.ranks[rank])
        for cut, resumed in pairwise(one for one in passes if one.trains):
            whole = _whole_epoch(resumed, passes)
            if resumed.first_step in saved and resumed.drawn < whole and _goes_on(cut, resumed, whole, loads):
                found[str(resumed.made_line)].setdefault(rank, (cut, resumed))
    for pairs in found.values():
        cuts, resumes = zip(*pairs.values(), strict=True)
        lists, keep = comparable_indices([*cuts, *resumes])
        before, since = (np.concatenate(part) for part in (lists[: len(cuts)], lists[len(cuts) :]))
        each_once = len(np.unique(before)) == len(before) and len(np.unique(since)) == len(since)
        repeated = len(np.intersect1d(before, since))
        if repeated and each_once and len(pairs) == recording.world_size:
            yield DrawnAgain(
                cuts[0],
                resumes[0],
                tuple(sorted(pairs)),
                repeated * keep,
                sum(one.drawn for one in cuts),
                sum(one.drawn for one in resumes),
                keep,
            )


@dataclass(frozen=True)
class BegunAnew:
    """A stream that was left within and is read from where the pass before began: `resumed` gives the samples of `cut` again."""

    cut: LoaderPass
    resumed: LoaderPass
    ranks: tuple[int, ...]


def begun_anew(orders: SampleOrders, recording: Recording) -> Iterator[BegunAnew]:
    """The first such resumption of each line that makes a loader. Not where a training reads the same again without a resumption,
    or goes on from before what it has read."""
    found: dict[str, list[tuple[LoaderPass, LoaderPass]]] = defaultdict(list)
    for rank, passes in orders.by_rank.items():
        log = recording.ranks[rank]
        loads, saved = _loads(log), {event.step for event in log.noted(Saving)}
        streams = [one for one in passes if one.trains and one.flags & PassFlag.ITERABLE]
        pairs = [(one, other) for one, other in pairwise(streams) if _same_data(one, other)]
        alike = [(cut, resumed) for cut, resumed in pairs if not cut.read_all and _has_same_rows(cut, resumed)]
        if any(cut.optimizer == resumed.optimizer for cut, resumed in alike):
            continue
        for cut, resumed in alike:
            goes_on = resumed.first_step > cut.first_step and resumed.first_step in saved
            if goes_on and any(cut.started_ns < load < resumed.started_ns for load in loads):
                found[str(resumed.made_line)].append((cut, resumed))
                break
    for found_pairs in found.values():
        cut, resumed = found_pairs[0]
        yield BegunAnew(cut, resumed, tuple(sorted(one.rank for _, one in found_pairs)))


def _loads(log: RankTrace) -> list[int]:
    """When the state of an optimizer was loaded, on the wall clock."""
    return [one.at_ns + log.monotonic_to_wall_ns for one in log.noted(StateLoaded) if one.what == "optimizer"]


def _goes_on(cut: LoaderPass, resumed: LoaderPass, whole: int, loads: Sequence[int]) -> bool:
    """Whether a pass goes on in the epoch of one that did not come to its end, with another optimizer that was given a state: it
    was told this epoch, or has as many samples as were left of it."""
    told = resumed.set_epoch_calls > 0 and cut.epoch_told == resumed.epoch_told
    same = _same_data(cut, resumed) and resumed.exhausted and (told or cut.drawn + resumed.drawn == whole)
    drawn = cut.comparable and resumed.comparable and not (cut.flags | resumed.flags) & PassFlag.REPLACEMENT
    loaded = any(cut.started_ns < load < resumed.started_ns for load in loads)
    return same and drawn and loaded and not cut.read_all and cut.optimizer != resumed.optimizer


def _whole_epoch(resumed: LoaderPass, passes: Sequence[LoaderPass]) -> int:
    """How many samples the longest training pass over the same data drew that came to its end; 0: there is none."""
    others = (one.drawn for one in passes if one.exhausted and one.trains and _same_data(one, resumed))
    return max(others, default=0)


def _same_data(one: LoaderPass, other: LoaderPass) -> bool:
    return one.made_line == other.made_line and one.length == other.length and one.data.same_content(other.data)


def _has_same_rows(one: LoaderPass, other: LoaderPass) -> bool:
    return min(len(one.first), len(other.first)) >= LEAST_ROWS and same_order(one, other)


def _is_same_order(one: LoaderPass, other: LoaderPass) -> bool:
    return min(len(one.first), len(other.first)) >= LEAST_DRAWS and same_order(one, other)
