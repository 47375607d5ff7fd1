"""One rank issues another operation where the others reduce."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISMATCHED_OPERATION = Drill(
    slug="mismatched-operation",
    code="DD102",
    summary="rank 1 broadcasts in step 3 where the others all_reduce",
    expect="DD102: broadcast on rank 1, all_reduce on the others",
    plant="distdoctor_drills.hang.mismatched_operation:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 believes that a value is given out where the others sum it up; then all reduce another one together."""
    combine = partial(dist.broadcast, src=0) if training.rank == 1 else dist.all_reduce

    def report(training: Training) -> None:
        if training.step == 3:
            handles: list[Any] = [combine(torch.ones(3), async_op=True), dist.all_reduce(torch.ones(5), async_op=True)]
            for handle in handles:
                handle.wait()

    training.on("after_step", report)
