"""A fact of each rank, worked out when somebody asks for it: those of a hundred thousand ranks do not fill the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

KEPT = 16  # ranks whose facts stay; some 100 KB a rank in all
Fact = TypeVar("Fact")


class PerRank(Mapping[int, Fact]):
    """rank -> its fact. Of the first `KEPT` ranks that are asked for it stays, of all others it is worked out each time."""

    def __init__(self, ranks: Iterable[int], work_out: Callable[[int], Fact]) -> None:
        self._ranks, self._work_out = dict.fromkeys(ranks), work_out
        self._kept: dict[int, Fact] = {}

    def __getitem__(self, rank: int) -> Fact:
        if rank in self._kept:
            return self._kept[rank]
        if rank not in self._ranks:
            raise KeyError(rank)
        fact = self._work_out(rank)
        if len(self._kept) < KEPT:
            self._kept[rank] = fact
        return fact

    def __contains__(self, rank: object) -> bool:
        return rank in self._ranks

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)
