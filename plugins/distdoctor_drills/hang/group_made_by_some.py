"""One rank creates a group that the others do not create."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

GROUP_MADE_BY_SOME = Drill(
    slug="group-made-by-some",
    code="DD119",
    summary="only rank 0 calls new_group, in step 3",
    expect="DD119: only rank 0 called new_group",
    plant="distdoctor_drills.hang.group_made_by_some:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 0 wants a group with rank 1, who is not told."""

    def make(training: Training) -> None:
        if training.step == 3 and training.rank == 0:
            dist.new_group([0, 1])

    training.on("after_step", make)
