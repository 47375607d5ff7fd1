"""One rank reduces a tensor of a different dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISMATCHED_DTYPE = Drill(
    slug="mismatched-dtype",
    code="DD104",
    summary="rank 1 all_reduces float32 where the others all_reduce float64",
    expect="DD104: float32 on rank 1, float64 on the others",
    plant="distdoctor_drills.hang.mismatched_dtype:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 counts in single precision, once."""
    usual = training.reduce_metrics

    def reduce_metrics(totals: Tensor) -> Tensor:
        if training.rank == 1 and training.step == 3:
            return usual(totals.float()).double()
        return usual(totals)

    training.replace("reduce_metrics", reduce_metrics)
