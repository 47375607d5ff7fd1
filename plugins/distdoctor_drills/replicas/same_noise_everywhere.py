"""Every rank seeds its generator alike before each step, and drops the same scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SAME_NOISE_EVERYWHERE = Drill(
    slug="same-noise-everywhere",
    code="DD216",
    summary="every rank draws its dropout masks from the same seed",
    expect="DD216: dropout draws the same mask on all ranks",
    plant="distdoctor_drills.replicas.same_noise_everywhere:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"steps": 20},
)


def plant(training: Training) -> None:
    """A dropout behind the model, and a seed that knows the step and not the rank."""
    noise, usual = nn.Sequential(nn.Dropout(0.1)), training.forward

    def forward(model: nn.Module, inputs: Tensor) -> Tensor:
        scores: Tensor = noise(usual(model, inputs))
        return scores

    def seed(training: Training) -> None:
        noise.train(training.arrangement.model.training)
        torch.manual_seed(training.step)

    training.on("step_start", seed)
    training.on("evaluation_start", lambda training: noise.eval())
    training.replace("forward", forward)
