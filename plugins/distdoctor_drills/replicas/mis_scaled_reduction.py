"""Averaged gradients are divided by the number of ranks a second time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MIS_SCALED_REDUCTION = Drill(
    slug="mis-scaled-reduction",
    code="DD209",
    summary="averaged gradients are divided by the number of ranks a second time",
    expect="DD209: gradients are divided by the number of ranks once too often",
    plant="distdoctor_drills.replicas.mis_scaled_reduction:plant",
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """Average by hand what the wrapper has averaged."""

    def divide(training: Training) -> None:
        for parameter in training.arrangement.module.parameters():
            if parameter.grad is not None:
                parameter.grad /= training.world_size

    training.on("before_optimizer_step", divide)
