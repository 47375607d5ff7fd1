"""Which samples a Subset stands for: the data set below it, and the way from its indices to those of that one."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from distdoctor.probe.interruptions import hand_on
from distdoctor.recording.trace.layout import PassFlag

Way = list[Callable[[int], int]]
MOST_PARTS = 1024  # of one that is put together


def below_subsets(dataset: Any) -> tuple[Any, Way, PassFlag]:
    """The data set below any Subsets, how to get from an index of the outermost to one of it, and whether that is possible.

    Below Subsets that are put together lies what they are parts of, put together.
    """
    way: Way = []
    while type(dataset) is Subset:
        indices = dataset.indices
        if type(indices) not in (list, tuple, range, array):
            return dataset, [], PassFlag.UNTRANSLATED
        way.append(indices.__getitem__)
        dataset = dataset.dataset
    if type(dataset) is ConcatDataset and any(type(part) is Subset for part in dataset.datasets[:MOST_PARTS]):
        return _below_parts(dataset, way)
    return dataset, way, PassFlag.TRANSLATED if way else PassFlag(0)


def _below_parts(dataset: ConcatDataset[Any], way: Way) -> tuple[Any, Way, PassFlag]:
    below = [below_subsets(part) for part in dataset.datasets]
    if len(below) > MOST_PARTS or any(flag is PassFlag.UNTRANSLATED for *_, flag in below):
        return dataset, [], PassFlag.UNTRANSLATED
    try:
        whole: ConcatDataset[Any] = ConcatDataset([base for base, *_ in below])
    except Exception as error:  # a data set that only a Subset gives a length
        hand_on(error)
        return dataset, [], PassFlag.UNTRANSLATED
    starts = [0, *whole.cumulative_sizes]
    parts = [(start, within) for start, (_, within, _) in zip(starts, below, strict=False)]
    return whole, [*way, _into(parts, dataset.cumulative_sizes)], PassFlag.TRANSLATED


def _into(parts: Sequence[tuple[int, Way]], ends: Sequence[int]) -> Callable[[int], int]:
    """`parts`: where each begins in the whole, and the way from its own indices to those of what it is a part of."""

    def translated(index: int) -> int:
        number = bisect_right(ends, index)
        start, within = parts[number]
        index -= ends[number - 1] if number else 0
        for getitem in within:
            index = getitem(index)
        return start + index

    return translated
