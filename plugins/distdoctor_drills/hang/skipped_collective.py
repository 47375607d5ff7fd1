"""One rank skips an all_reduce and trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SKIPPED_COLLECTIVE = Drill(
    slug="skipped-collective",
    code="DD101",
    summary="rank 1 skips the all_reduce of the loss in step 3",
    expect="DD101: rank 1 skipped the all_reduce that the others wait in",
    plant="distdoctor_drills.hang.skipped_collective:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 takes its own loss for everybody's, once."""
    usual = training.reduce_metrics

    def reduce_metrics(totals: Tensor) -> Tensor:
        if training.rank == 1 and training.step == 3:
            return totals
        return usual(totals)

    training.replace("reduce_metrics", reduce_metrics)
