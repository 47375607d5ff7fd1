"""One rank issues the same collectives in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

REORDERED_COLLECTIVES = Drill(
    slug="reordered-collectives",
    code="DD107",
    summary="rank 1 reduces accuracy before loss, the others loss before accuracy",
    expect="DD107: the first swapped pair, on rank 1",
    plant="distdoctor_drills.hang.reordered_collectives:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Two metrics of different size, reduced in an order that depends on the rank."""

    def report(training: Training) -> None:
        if training.step != 3:
            return
        loss, accuracy = torch.ones(3), torch.ones(5)
        first, second = (accuracy, loss) if training.rank == 1 else (loss, accuracy)
        handles = [dist.all_reduce(metric, async_op=True) for metric in (first, second)]
        for handle in handles:
            handle.wait()

    training.on("after_step", report)
