"""Micro-batches are summed instead of averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MIS_SCALED_ACCUMULATION = Drill(
    slug="mis-scaled-accumulation",
    code="DD208",
    summary="the loss is not divided by the four micro-batches",
    expect="DD208: gradients are 4 times too large",
    plant="distdoctor_drills.replicas.mis_scaled_accumulation:plant",
    ranks=(),
    strategies=("single", "ddp", "fsdp", "amp"),
    arguments={"accumulate": 4},
)


def plant(training: Training) -> None:
    """Leave the division out."""

    def scale_loss(loss: Tensor) -> Tensor:
        return loss

    training.replace("scale_loss", scale_loss)
