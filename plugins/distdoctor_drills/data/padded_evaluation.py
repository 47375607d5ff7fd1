"""The test set is not divisible by the number of ranks, and the metric counts the padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import Subset

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

PADDED_EVALUATION = Drill(
    slug="padded-evaluation",
    code="DD309",
    summary="the test set has 31 samples",
    expect="DD309: 1 of 32 evaluated samples is padding",
    plant="distdoctor_drills.data.padded_evaluation:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 1, "steps": 4},
)


def plant(training: Training) -> None:
    """Make the test set small and odd, and measure at least once."""
    train_set, test_set = training.train_set, training.test_set
    training._data = train_set, Subset(test_set, range(31))
    if not training.request.evaluate:
        training.on("training_end", lambda training: training.evaluate())
