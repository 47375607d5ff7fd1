"""Gradients are clipped while they are still multiplied by the GradScaler scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

CLIP_BEFORE_UNSCALE = Drill(
    slug="clip-before-unscale",
    code="DD803",
    summary="gradients are clipped to norm 1 before they are unscaled",
    expect="DD803: gradients are clipped while they are still scaled",
    plant="distdoctor_drills.numerics.clip_before_unscale:plant",
    ranks=(),
    strategies=("amp",),
)


def plant(training: Training) -> None:
    """Clip where one always clips."""

    def clip(training: Training) -> None:
        nn.utils.clip_grad_norm_(training.arrangement.module.parameters(), 1.0)

    training.on("before_optimizer_step", clip)
