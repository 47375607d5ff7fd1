"""Each rank keeps its own moving average of what the model has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DRIFTING_BUFFERS = Drill(
    slug="drifting-buffers",
    code="DD204",
    summary="a buffer tracks each rank's own batches, and ranks that average by hand leave it out",
    expect="DD204: buffers differ between the ranks: seen",
    plant="distdoctor_drills.replicas.drifting_buffers:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"by_hand": True, "steps": 20},
)


def plant(training: Training) -> None:
    """A mean of the inputs, as codebooks and normalisers keep one."""

    def make(training: Training) -> None:
        training.arrangement.module.register_buffer("seen", torch.zeros(1, device=training.device))

    def follow(training: Training) -> None:
        training.arrangement.module.get_buffer("seen").lerp_(training.inputs.float().mean(), 0.1)

    training.on("training_start", make)
    training.on("after_backward", follow)
