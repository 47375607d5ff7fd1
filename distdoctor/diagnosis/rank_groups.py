"""Ranks that have the same of something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from itertools import chain


def variants_of(values: Mapping[int, Hashable]) -> tuple[tuple[int, ...], ...]:
    """Ranks with equal values, the most numerous first."""
    return variants_of_sets({(rank,): value for rank, value in values.items()})


def variants_of_sets(values: Mapping[tuple[int, ...], Hashable]) -> tuple[tuple[int, ...], ...]:
    """The same of sets of ranks, each in order, that are known to have one value."""
    together: dict[Hashable, list[tuple[int, ...]]] = defaultdict(list)
    for ranks, value in values.items():
        together[value].append(ranks)
    merged = (sets[0] if len(sets) == 1 else tuple(sorted(chain.from_iterable(sets))) for sets in together.values())
    return tuple(sorted(merged, key=lambda ranks: (-len(ranks), ranks)))
