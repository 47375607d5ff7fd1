"""An IterableDataset that is not sharded by rank."""

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
    summary="the dataset is a stream that every rank reads whole",
    expect="DD306: all ranks read the same stream",
    plant="distdoctor_drills.data.unsharded_iterable:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 1, "steps": 16},
)


class Stream(IterableDataset[Any]):
    """Yields the samples of a data set in their order, beginning at `first`, every `stride`-th."""

    def __init__(self, dataset: Any, first: int, stride: int) -> None:
        self.dataset, self.first, self.stride = dataset, first, stride

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[index] for index in range(self.first, len(self.dataset), self.stride))


def read_as_stream(training: Training, *, divided: bool, workers: int) -> None:
    """Read the training set as a stream from here on, divided among the ranks or not."""
    usual = training.make_loader

    def make_loader(dataset: Any, sampler: Any, *, drop_last: bool, skip: int = 0) -> Any:
        if not drop_last:
            return usual(dataset, sampler, drop_last=drop_last, skip=skip)
        here = training.arrangement  # known once the ranks have met
        size = training.request.batch_size // here.data_ranks
        stream = Stream(dataset, here.data_rank, here.data_ranks) if divided else Stream(dataset, 0, 1)
        return DataLoader(stream, batch_size=size, drop_last=True, num_workers=workers)

    training.replace("make_loader", make_loader)


def plant(training: Training) -> None:
    """Read the training set as a stream, the same one on every rank."""
    read_as_stream(training, divided=False, workers=0)
