"""Ranks that have the same of something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping


def variants_of(values: Mapping[int, Hashable]) -> tuple[tuple[int, ...], ...]:
    """Ranks with equal values, the most numerous first."""
    together: dict[Hashable, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items(), key=lambda one: one[0]):
        together[value].append(rank)
    return tuple(sorted((tuple(ranks) for ranks in together.values()), key=lambda ranks: (-len(ranks), ranks)))
