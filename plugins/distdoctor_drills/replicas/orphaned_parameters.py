"""The optimizer is built while the last layer is frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

ORPHANED_PARAMETERS = Drill(
    slug="orphaned-parameters",
    code="DD211",
    summary="the last layer is frozen when the optimizer is built, and trained afterwards",
    expect="DD211: no optimizer holds the last layer's parameters",
    plant="distdoctor_drills.replicas.orphaned_parameters:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"steps": 20},
)


def plant(training: Training) -> None:
    """Thaw too late."""

    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        last = list(training.arrangement.module.children())[-1]
        last.requires_grad_(False)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=training.request.lr)
        last.requires_grad_(True)
        return optimizer

    training.replace("make_optimizer", make_optimizer)
