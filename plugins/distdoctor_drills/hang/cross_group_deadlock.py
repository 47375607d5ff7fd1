"""Two groups with the same members, entered in opposite order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

CROSS_GROUP_DEADLOCK = Drill(
    slug="cross-group-deadlock",
    code="DD108",
    summary="ranks 0 and 1 enter two groups in opposite order",
    expect="DD108: the cycle rank 0 -> rank 1 -> rank 0",
    plant="distdoctor_drills.hang.cross_group_deadlock:plant",
    ranks=(),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Both ranks wait for each other, each in the other's next group."""

    def deadlock(training: Training) -> None:
        if training.step != 3:
            return
        a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (b, a) if training.rank == 1 else (a, b):
            if isinstance(group, dist.ProcessGroup):  # ranks 2 and up belong to neither
                dist.all_reduce(torch.ones(1), group=group)

    training.on("after_step", deadlock)
