"""The training data are an IterableDataset that knows its rank and no worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DUPLICATED_BY_WORKERS = Drill(
    slug="duplicated-by-workers",
    code="DD307",
    summary="every worker reads the whole stream of its rank",
    expect="DD307: each batch comes once from every worker",
    plant="distdoctor_drills.duplicated_by_workers:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 1, "steps": 16},
)


class Stream(IterableDataset[Any]):
    """Yields the samples of a data set in their order, beginning at `first`, every `stride`-th."""

    def __init__(self, dataset: Any, first: int, stride: int) -> None:
        self.dataset, self.first, self.stride = dataset, first, stride

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[index] for index in range(self.first, len(self.dataset), self.stride))


def plant(training: Training) -> None:
    """Read the training set as a stream that is divided among the ranks, and not among their workers."""
    usual = training.make_loader

    def make_loader(dataset: Any, sampler: Any, *, drop_last: bool, skip: int = 0) -> Any:
        if not drop_last:
            return usual(dataset, sampler, drop_last=drop_last, skip=skip)
        size = training.request.batch_size // training.arrangement.data_ranks
        stream = Stream(dataset, training.arrangement.data_rank, training.arrangement.data_ranks)
        return DataLoader(stream, batch_size=size, drop_last=True, num_workers=2)

    training.replace("make_loader", make_loader)
