"""Ranks as people write them: `ranks 0-6,8-63`."""

from __future__ import annotations

from collections.abc import Iterable


def spans(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """The runs of consecutive ranks as (first, last), in rising order."""
    runs: list[tuple[int, int]] = []
    ranks = sorted(set(ranks))
    if ranks and ranks[-1] - ranks[0] + 1 == len(ranks):  # of a million that are missing, a million go in one step
        return [(ranks[0], ranks[-1])]
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def compress(ranks: Iterable[int]) -> str:
    """`0-6,8-63`; at most eight runs are spelled out, the rest is counted."""
    runs = spans(ranks)
    shown = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:8])
    left = sum(b - a + 1 for a, b in runs[8:])
    return f"{shown} and {left} more" if left else shown


def named(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2`, `no rank`."""
    ranks = sorted(set(ranks))
    if not ranks:
        return "no rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {compress(ranks)}"
