"""The handle of an asynchronous reduction is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

HANDLE_NOT_WAITED = Drill(
    slug="handle-not-waited",
    code="DD120",
    summary="the metrics are reduced with async_op=True, and the handle is never waited for",
    expect="DD120: the line drops its handles on every rank; the job ends normally",
    plant="distdoctor_drills.hang.handle_not_waited:plant",
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Reduce and go on at once."""

    def reduce_metrics(totals: Tensor) -> Tensor:
        dist.all_reduce(totals.clone(), async_op=True)
        return totals

    training.replace("reduce_metrics", reduce_metrics)
