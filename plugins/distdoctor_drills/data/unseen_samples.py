"""A hand-written sampler divides by one rank too many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNSEEN_SAMPLES = Drill(
    slug="unseen-samples",
    code="DD310",
    summary="the ranks read two of three shards",
    expect="DD310: a third of the samples is never drawn",
    plant="distdoctor_drills.data.unseen_samples:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 2},
)


class Part(Sampler[int]):
    """The rank's piece of the data set, cut for one rank more than there are."""

    def __init__(self, length: int, rank: int, ranks: int) -> None:
        each = length // (ranks + 1)
        self.indices = range(rank * each, (rank + 1) * each)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def plant(training: Training) -> None:
    """Divide the training set by hand, and wrongly."""
    usual = training.make_sampler

    def make_sampler(dataset: Any, *, shuffle: bool) -> Sampler[int] | None:
        if not shuffle:
            return usual(dataset, shuffle=shuffle)
        return Part(len(dataset), training.arrangement.data_rank, training.arrangement.data_ranks)

    training.replace("make_sampler", make_sampler)
