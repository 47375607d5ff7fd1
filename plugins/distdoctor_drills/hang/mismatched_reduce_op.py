"""One rank reduces with another operator: nothing hangs, but the numbers are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISMATCHED_REDUCE_OP = Drill(
    slug="mismatched-reduce-op",
    code="DD105",
    summary="rank 1 reduces with MAX where the others use SUM",
    expect="DD105: MAX on rank 1, SUM on the others; the job ends normally",
    plant="distdoctor_drills.hang.mismatched_reduce_op:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 asks for the maximum, once."""
    usual = training.reduce_metrics

    def reduce_metrics(totals: Tensor) -> Tensor:
        if training.rank == 1 and training.step == 3:
            dist.all_reduce(totals, op=dist.ReduceOp.MAX)
            return totals
        return usual(totals)

    training.replace("reduce_metrics", reduce_metrics)
