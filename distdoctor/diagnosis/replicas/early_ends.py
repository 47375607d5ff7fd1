"""Schedules that reach their end when a training on P ranks has made one P-th of its steps, and stay there or rise again.

That is the pace of a schedule that is moved once for every process in each step. One that is meant to begin anew looks alike, so
what the source says of it has to be known besides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.idle_steps import LEAST_SHARE, LEAST_STEPS
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, Update
from distdoctor.recording.recording import SourceLine

ENDED = 0.01  # of the highest rate
AGAIN = 0.2  # of the highest rate: it has risen again
RISING = 4  # sampled steps in which it rises: what begins anew is back at its highest rate at once
_NEAR = 0.05  # of the training


@dataclass(frozen=True)
class EarlyEnd:
    """The rate of an optimizer was at its lowest in step `at`, and the training went on to step `until`.

    `again`: the highest rate since, None where it stayed low.
    """

    optimizer: int
    ranks: tuple[int, ...]
    at: int
    until: int
    highest: float
    lowest: float
    again: float | None
    site: SourceLine
    at_ns: int


def early_ends(gradients: Gradients, world_size: int) -> Iterator[EarlyEnd]:
    """Of each optimizer, where all ranks have seen the same."""
    found: dict[int, list[EarlyEnd]] = defaultdict(list)
    for own in gradients.ranks.values() if world_size > 1 else ():
        for one in _of_rank(own, world_size):
            found[one.optimizer].append(one)
    for alike in found.values():
        if len(alike) == world_size and len({(one.at, one.highest, one.lowest) for one in alike}) == 1:
            yield replace(alike[0], ranks=tuple(sorted(one.ranks[0] for one in alike)))


def _of_rank(own: RankGradients, world_size: int) -> Iterator[EarlyEnd]:
    by_optimizer: dict[int, list[Update]] = defaultdict(list)
    for update in own.updates:
        if update.step:
            by_optimizer[update.optimizer].append(update)
    for optimizer, updates in by_optimizer.items():
        lowest = _end_of(updates)
        if lowest is None:
            continue
        until, rest = updates[-1].step, [one.value("lr") for one in updates if one.step > lowest.step]
        left = until - lowest.step
        if left < LEAST_STEPS or left < LEAST_SHARE * until or abs(lowest.step - until / world_size) > _NEAR * until:
            continue
        highest = max(update.value("lr") for update in updates)
        stays = max(rest) <= ENDED * highest
        if stays or _rises(rest, highest):
            again = None if stays else max(rest)
            ends = lowest.value("lr")
            yield EarlyEnd(optimizer, (own.rank,), lowest.step, until, highest, ends, again, lowest.site, lowest.at_ns)


def _end_of(updates: Sequence[Update]) -> Update | None:
    """The step with the lowest rate in the first stretch of low rates behind the highest one; it has come down in steps."""
    rates = [update.value("lr") for update in updates]
    highest = max(rates)
    top = next(at for at, rate in enumerate(rates) if rate >= 0.9 * highest)
    low = next((at for at in range(top, len(rates)) if rates[at] <= ENDED * highest), None)
    if not highest or low is None or len({*rates[top:low]}) < RISING:
        return None
    stretch = []
    for update in updates[low:]:
        if update.value("lr") > ENDED * highest:
            break
        stretch.append(update)
    return min(stretch, key=lambda update: update.value("lr"))


def _rises(rates: Sequence[float], highest: float) -> bool:
    """Whether it climbs to a good part of the highest rate step by step."""
    climb = [rates[0]]
    for rate in rates[1:]:
        if rate < climb[-1]:
            break
        climb.append(rate)
    return climb[-1] >= AGAIN * highest and len({rate for rate in climb if rate < 0.9 * highest}) >= RISING
