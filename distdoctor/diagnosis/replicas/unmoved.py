"""Parameters that get a gradient in every step, belong to an optimizer that steps, and keep every bit.

Either nothing is to change them (the rate of their group is 0), or the change is lost: a bfloat16 number near one has neighbours
0.4 % away, and what is less than half of that is rounded away, step after step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, TensorInfo, Update
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import TensorFlag

HALF_PRECISION = ("bfloat16", "float16")
FEWEST_LOOKS = 8
FEWEST_STEPS = 32  # from the first to the last of them
LEAST_ELEMENTS = 8
FLOAT32_STEP = 2.0**-24  # the least change of a number near one
WOULD_MOVE = (
    0.03  # rates of all steps together: numbers near one, whose updates are as large as the rate, would have moved
)


@dataclass(frozen=True)
class Unmoved:
    """Parameters of one optimizer that keep their bits from step `since` to `until`, with the ranks on which they do."""

    names: tuple[str, ...]
    of: int  # parameters of the optimizer that were looked at
    ranks: tuple[int, ...]
    dtype: str
    rate: float
    since: int
    until: int
    site: SourceLine
    at_ns: int

    @property
    def is_rounded_away(self) -> bool:
        return self.dtype in HALF_PRECISION


def unmoved(gradients: Gradients) -> Iterator[Unmoved]:
    """By optimizer and dtype, where other parameters of the optimizer do change."""
    found: dict[tuple[int, str], dict[int, list[tuple[str, int, int]]]] = defaultdict(dict)
    looked_at: dict[int, set[str]] = defaultdict(set)
    for rank, own in gradients.ranks.items():
        for optimizer, updates in _updates(own).items():
            alike, all_of_them = _alike_in_the_later_half(own, optimizer, updates)
            looked_at[optimizer] |= all_of_them
            moved = [one for one in own.tensors.values() if one.name in all_of_them - alike]
            for tensor in own.tensors.values() if alike < all_of_them else ():  # else its rate is 0 everywhere
                if tensor.optimizer != optimizer or tensor.name not in alike or tensor.numel < LEAST_ELEMENTS:
                    continue
                still = _still(own, tensor)
                if still is not None and _would_move(own, tensor, moved, updates, *still):
                    found[optimizer, tensor.dtype].setdefault(rank, []).append((tensor.name, *still))
    for (optimizer, dtype), by_rank in found.items():
        every = [one for own in by_rank.values() for one in own]
        names = tuple(dict.fromkeys(name for name, *_ in every))
        updates = _updates(gradients.ranks[min(by_rank)])[optimizer]
        yield Unmoved(
            names, len(looked_at[optimizer]), tuple(sorted(by_rank)), dtype, _rate(updates),
            max(since for _, since, _ in every), min(until for *_, until in every), updates[-1].site, updates[-1].at_ns,
        )  # fmt: skip


def _alike_in_the_later_half(
    own: RankGradients, optimizer: int, updates: Sequence[Update]
) -> tuple[set[str], set[str]]:
    """(parameters that have the same bits in the last look and in one before the later half, all that were looked at in both);
    nothing where that is too short to tell."""
    last = updates[-1].step
    early = [update.step for update in updates if update.step <= last - max(FEWEST_STEPS, last // 2)]
    if not early:
        return set(), set()
    then, now = own.digests(early[-1], optimizer), own.digests(last, optimizer)
    both = {
        name
        for name in then.keys() & now.keys()
        if (info := own.info(name, optimizer)) and not info.flags & TensorFlag.BUFFER
    }
    return {name for name in both if int(then[name]["param"]) == int(now[name]["param"]) != 0}, both


def _updates(own: RankGradients) -> Mapping[int, list[Update]]:
    found: dict[int, list[Update]] = defaultdict(list)
    for update in own.updates:
        if update.step and update.digested:
            found[update.optimizer].append(update)
    return found


def _still(own: RankGradients, tensor: TensorInfo) -> tuple[int, int] | None:
    """(step from which, step up to which) a parameter keeps its bits with a gradient in each look: at least the later half of
    the training that was seen. None: it changes, or too little was seen."""
    rows = [(step, row) for step, row in own.rows_of(tensor.seq) if int(row["param"])]
    last, kept = (int(rows[-1][1]["param"]), rows[-1][0]) if rows else (0, 0)
    same: list[int] = []
    for step, row in reversed(rows):
        norm = float(row["norm"])
        if int(row["param"]) != last:
            break
        if step and not (math.isfinite(norm) and norm > 0):
            return None
        same.append(step)
    enough = len(same) >= FEWEST_LOOKS and kept - same[-1] >= max(FEWEST_STEPS, kept // 2)
    return (same[-1], kept) if enough else None


def _would_move(
    own: RankGradients,
    tensor: TensorInfo,
    moved: Sequence[TensorInfo],
    updates: Sequence[Update],
    since: int,
    until: int,
) -> bool:
    """Whether numbers of this precision would have moved by now. In single precision they do by any gradient that is more than
    the rounding of a sum which is zero, as that of a bias before a normalization is."""
    if tensor.dtype in HALF_PRECISION:
        return _rate(updates) * (until - since) >= WOULD_MOVE
    mean_element = _mean_element(own, tensor)
    others = [_mean_element(own, one) for one in moved if one.optimizer == tensor.optimizer]
    return mean_element >= min(others, default=0.0) or _rate(updates) * mean_element >= FLOAT32_STEP


def _mean_element(own: RankGradients, tensor: TensorInfo) -> float:
    """Root of the mean square of the elements of a gradient, the median of the looks."""
    norms = [float(row["norm"]) for step, row in own.rows_of(tensor.seq) if step]
    return median(norms or [0.0]) / math.sqrt(max(1, tensor.numel))


def _rate(updates: Sequence[Update]) -> float:
    return median(update.value("lr") for update in updates)
