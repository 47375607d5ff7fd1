"""Data of the user's that are told the epoch while persistent workers read copies of what they were before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders


@dataclass(frozen=True)
class OutdatedCopies:
    """`first`: the first training pass whose workers hold data of an earlier epoch. `epochs`: how many of them each rank made."""

    first: LoaderPass
    ranks: tuple[int, ...]
    epochs: int


def outdated_copies(orders: SampleOrders, leave_out: Collection[str] = ()) -> Iterator[OutdatedCopies]:
    """One per loader, but for those that were made on these lines."""
    found: dict[str, dict[int, list[LoaderPass]]] = defaultdict(lambda: defaultdict(list))
    for rank, passes in orders.by_rank.items():
        for one in passes:
            if one.trains and one.outdated and str(one.made_line) not in leave_out:
                found[str(one.made_line)][rank].append(one)
    for by_rank in found.values():
        first = by_rank[min(by_rank)][0]
        yield OutdatedCopies(first, tuple(sorted(by_rank)), min(map(len, by_rank.values())))
