"""One rank reduces a tensor of another shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISMATCHED_SHAPE = Drill(
    slug="mismatched-shape",
    code="DD103",
    summary="rank 1 all_reduces three numbers where the others all_reduce two",
    expect="DD103: [3] on rank 1, [2] on the others",
    plant="distdoctor_drills.hang.mismatched_shape:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 has one metric more to tell, once."""
    usual = training.reduce_metrics

    def reduce_metrics(totals: Tensor) -> Tensor:
        if training.rank == 1 and training.step == 3:
            return usual(torch.cat([totals, totals.new_zeros(1)]))[:2]
        return usual(totals)

    training.replace("reduce_metrics", reduce_metrics)
