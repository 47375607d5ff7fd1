"""The evaluation builds an autograd graph."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

GRADIENTS_DURING_EVALUATION = Drill(
    slug="gradients-during-evaluation",
    code="DD411",
    summary="the evaluation after each epoch runs with gradients on",
    expect="DD411: the evaluation recorded operations for a backward that never runs",
    plant="distdoctor_drills.memory.gradients_during_evaluation:plant",
    strategies=("ddp", "single"),
    arguments={"epochs": 2, "evaluate": False},
)


def plant(training: Training) -> None:
    """Evaluate when an epoch is over, and leave out no_grad."""
    training.replace("without_gradients", nullcontext)
    training.on("epoch_end", lambda own: own.evaluate())
