"""Each rank splits training from validation with its rank as the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.data import random_split

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RANK_DEPENDENT_SPLIT = Drill(
    slug="rank-dependent-split",
    code="DD313",
    summary="the split is seeded with the rank",
    expect="DD313: the ranks' splits differ, and validation leaks into training",
    plant="distdoctor_drills.data.rank_dependent_split:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 1, "steps": 30},
)


def plant(training: Training) -> None:
    """Split the training set anew on each rank, and measure on the other part."""
    whole = training.train_set
    generator = torch.Generator().manual_seed(training.rank)
    held_out = len(whole) // 5
    train_set, test_set = random_split(whole, [len(whole) - held_out, held_out], generator=generator)
    training._data = train_set, test_set
    if not training.request.evaluate:
        training.on("training_end", lambda training: training.evaluate())
