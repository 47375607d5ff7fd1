"""Two ranks disagree on the source of a broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISMATCHED_ROOT = Drill(
    slug="mismatched-root",
    code="DD106",
    summary="in step 3 every rank broadcasts from itself",
    expect="DD106: src=1 on rank 1, src=0 on rank 0",
    plant="distdoctor_drills.hang.mismatched_root:plant",
    ranks=(),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Everybody gives the decision of step 3 out, so nobody takes one in."""

    def decide(training: Training) -> None:
        if training.step == 3:
            dist.broadcast(torch.zeros(1), src=min(training.rank, 1))

    training.on("after_step", decide)
