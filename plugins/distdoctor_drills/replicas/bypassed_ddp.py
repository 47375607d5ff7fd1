"""The training calls the module inside DistributedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

BYPASSED_DDP = Drill(
    slug="bypassed-ddp",
    code="DD206",
    summary="from step 3 on, the forward goes through model.module",
    expect="DD206: the forward bypasses the wrapper from step 4 on",
    plant="distdoctor_drills.replicas.bypassed_ddp:plant",
    ranks=(),
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """Forget the wrapper."""
    usual = training.forward

    def forward(model: nn.Module, inputs: Tensor) -> Tensor:
        inside: nn.Module = training.arrangement.module
        return usual(inside if training.step >= 3 else model, inputs)

    training.replace("forward", forward)
