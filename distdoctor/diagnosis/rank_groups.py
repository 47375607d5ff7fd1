"""Ranks that have the same of something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


def by_value(values: Mapping[int, str]) -> list[tuple[str, tuple[int, ...]]]:
    """(value, its ranks), the most numerous first."""
    together: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        together[value].append(rank)
    return sorted(((value, tuple(ranks)) for value, ranks in together.items()), key=lambda one: (-len(one[1]), one[1]))
