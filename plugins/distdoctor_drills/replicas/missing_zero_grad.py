"""Gradients are never zeroed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    import torch

    from distdoctor.workloads.training import Training

MISSING_ZERO_GRAD = Drill(
    slug="missing-zero-grad",
    code="DD212",
    summary="zero_grad is never called",
    expect="DD212: gradients accumulate across steps",
    plant="distdoctor_drills.replicas.missing_zero_grad:plant",
    strategies=("ddp", "fsdp"),
)


def plant(training: Training) -> None:
    """Leave the call out."""

    def zero_grad(optimizer: torch.optim.Optimizer) -> None:
        return

    training.replace("zero_grad", zero_grad)
