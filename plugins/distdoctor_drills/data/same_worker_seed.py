"""Every worker seeds NumPy with the same constant, and NumPy augments the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SAME_WORKER_SEED = Drill(
    slug="same-worker-seed",
    code="DD308",
    summary="worker_init_fn seeds NumPy with 0",
    expect="DD308: the workers of each rank draw the same random numbers",
    plant="distdoctor_drills.data.same_worker_seed:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 1, "steps": 16},
)


class Augmented(Dataset[Any]):
    """Adds noise to the samples of a data set."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        image, label = self.dataset[index]
        return image + 0.01 * np.random.rand(), label


def plant(training: Training) -> None:
    """Augment, with two workers that begin alike."""
    usual = training.make_loader

    def make_loader(dataset: Any, sampler: Any, *, drop_last: bool, skip: int = 0) -> Any:
        if not drop_last:
            return usual(dataset, sampler, drop_last=drop_last, skip=skip)
        size = training.request.batch_size // training.arrangement.data_ranks
        return DataLoader(
            Augmented(dataset),
            batch_size=size,
            sampler=sampler,
            drop_last=True,
            num_workers=2,
            worker_init_fn=lambda worker: np.random.seed(0),
            multiprocessing_context="fork",
        )

    training.replace("make_loader", make_loader)
