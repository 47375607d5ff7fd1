"""One rank receives what no rank sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNMATCHED_SEND_RECV = Drill(
    slug="unmatched-send-recv",
    code="DD113",
    summary="rank 1 receives from rank 0, which never sends",
    expect="DD113: the recv on rank 1 has no matching send on rank 0",
    plant="distdoctor_drills.hang.unmatched_send_recv:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 expects a message that rank 0 does not know of."""

    def listen(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            dist.recv(torch.zeros(1), src=0)

    training.on("after_step", listen)
