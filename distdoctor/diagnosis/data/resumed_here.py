"""A training that goes on within its process from what another one there has saved, and draws in the order of an earlier epoch.

The sampler is a new one, of epoch 0, until somebody tells it the epoch under way: who skips the batches that were drawn already
skips those of another order. A training that loads no optimizer's state is a new one, and begins like the first by right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.data.repeated_orders import LEAST_DRAWS
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders, same_order
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import StateLoaded


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
        log = recording.ranks[rank]
        offset = log.monotonic_to_wall_ns
        loads = [one.at_ns + offset for one in log.noted(StateLoaded) if one.what == "optimizer"]
        one = _of_rank([each for each in passes if each.trains], loads)
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


def _same_data(one: LoaderPass, other: LoaderPass) -> bool:
    return one.made_line == other.made_line and one.length == other.length and one.data.same_content(other.data)


def _is_same_order(one: LoaderPass, other: LoaderPass) -> bool:
    return min(len(one.first), len(other.first)) >= LEAST_DRAWS and same_order(one, other)
