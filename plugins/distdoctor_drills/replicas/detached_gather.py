"""The loss uses all ranks' scores, gathered by a collective that autograd does not track."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DETACHED_GATHER = Drill(
    slug="detached-gather",
    code="DD217",
    summary="one term of the loss compares this rank's scores with those that all_gather collected from all ranks",
    expect="DD217: the loss is computed from what all_gather collected, which autograd does not track",
    plant="distdoctor_drills.replicas.detached_gather:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"steps": 20},
)


def plant(training: Training) -> None:
    """Push the scores of different samples apart."""
    usual = training.compute_loss

    def compute_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = usual(outputs, targets)
        if not torch.is_grad_enabled():
            return loss
        gathered = [torch.empty_like(outputs) for _ in range(training.world_size)]
        dist.all_gather(gathered, outputs.contiguous())
        return loss + 1e-3 * (outputs @ torch.cat(gathered).T).square().mean()

    training.replace("compute_loss", compute_loss)
