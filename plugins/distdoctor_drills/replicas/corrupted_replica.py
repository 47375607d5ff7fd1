"""One bit of one weight flips on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

CORRUPTED_REPLICA = Drill(
    slug="corrupted-replica",
    code="DD214",
    summary="bit 20 of one weight flips on rank 1 after step 4",
    expect="DD214: one bit of a parameter is flipped on rank 1",
    plant="distdoctor_drills.replicas.corrupted_replica:plant",
    ranks=(1,),
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """A cosmic ray."""

    def flip(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            weight = next(iter(training.arrangement.module.parameters())).detach()
            weight.view(-1).view(torch.int32)[7] ^= 1 << 20

    training.on("after_step", flip)
