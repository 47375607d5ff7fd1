"""Samples that are slow to read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DATA_BOUND = Drill(
    slug="data-bound",
    code="DD504",
    summary="each sample takes 2 ms to read",
    expect="DD504: most of each step is spent waiting for the next batch",
    plant="distdoctor_drills.speed.data_bound:plant",
    ranks=(0, 1),
    strategies=("ddp", "amp"),
    arguments={"epochs": 1},
)


class Slow:
    """A data set on a slow disk."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return self.dataset[index]


def plant(training: Training) -> None:
    """Read the training set from a slow disk."""
    usual = training.make_loader

    def make_loader(dataset: Any, *args: Any, **options: Any) -> Any:
        return usual(Slow(dataset) if options.get("drop_last") else dataset, *args, **options)

    training.replace("make_loader", make_loader)
