"""The training data are an IterableDataset that knows no rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNSHARDED_ITERABLE = Drill(
    slug="unsharded-iterable",
    code="DD306",
    summary="the data set is a stream that every rank reads whole",
    expect="DD306: all ranks are handed the same stream",
    plant="distdoctor_drills.unsharded_iterable:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 1, "steps": 16},
)


class Stream(IterableDataset[Any]):
    """Yields the samples of a data set in their order."""

    def __init__(self, dataset: Any, first: int, stride: int) -> None:
        self.dataset, self.first, self.stride = dataset, first, stride

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[index] for index in range(self.first, len(self.dataset), self.stride))


def plant(training: Training) -> None:
    """Read the training set as a stream, the same one on every rank."""
    usual = training.make_loader

    def make_loader(dataset: Any, sampler: Any, *, drop_last: bool, skip: int = 0) -> Any:
        if not drop_last:
            return usual(dataset, sampler, drop_last=drop_last, skip=skip)
        size = training.request.batch_size // training.arrangement.data_ranks
        stream = Stream(dataset, 0, 1)
        return DataLoader(stream, batch_size=size, drop_last=True)

    training.replace("make_loader", make_loader)
