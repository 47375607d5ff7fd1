"""The forward of every micro-batch is inside no_sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISALIGNED_NO_SYNC = Drill(
    slug="misaligned-no-sync",
    code="DD207",
    summary="every forward runs inside no_sync, even the last one before the step",
    expect="DD207: every forward since the previous step was inside no_sync",
    plant="distdoctor_drills.replicas.misaligned_no_sync:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"accumulate": 2},
)


def plant(training: Training) -> None:
    """Wrap only the forward, and wrap it always."""
    usual = training.forward

    def forward(model: DistributedDataParallel, inputs: Tensor) -> Tensor:
        if not model.training:
            return usual(model, inputs)
        with model.no_sync():
            return usual(model, inputs)

    training.replace("forward", forward)
