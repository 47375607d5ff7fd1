"""One rank waits in a barrier under a condition that only it meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RANK_CONDITIONAL_COLLECTIVE = Drill(
    slug="rank-conditional-collective",
    code="DD112",
    summary="only rank 0 enters a barrier in step 3",
    expect="DD112: the barrier is under a condition that only rank 0 meets",
    plant="distdoctor_drills.hang.rank_conditional_collective:plant",
    ranks=(0,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 0 waits for the others, who do not know of it."""

    def wait(training: Training) -> None:
        if training.step != 3:
            return
        if training.rank == 0:
            dist.barrier()

    training.on("after_step", wait)
