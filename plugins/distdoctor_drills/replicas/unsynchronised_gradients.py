"""Every rank adds its own noise to its gradients after they were averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNSYNCHRONISED_GRADIENTS = Drill(
    slug="unsynchronised-gradients",
    code="DD202",
    summary="from step 4 on, each rank adds its own noise to one gradient",
    expect="DD202: the gradients of one parameter differ when the optimizer steps",
    plant="distdoctor_drills.replicas.unsynchronised_gradients:plant",
    ranks=(),
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """Noise for privacy, drawn differently on each rank."""
    generator = torch.Generator().manual_seed(training.rank)

    def disturb(training: Training) -> None:
        gradient = list(training.arrangement.module.parameters())[-1].grad
        if training.step >= 3 and gradient is not None:
            gradient += 1e-3 * torch.randn(gradient.shape, generator=generator).to(gradient.device)

    training.on("before_optimizer_step", disturb)
