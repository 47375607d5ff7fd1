"""Both ranks receive first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SEND_RECV_CYCLE = Drill(
    slug="send-recv-cycle",
    code="DD114",
    summary="ranks 0 and 1 both receive before they send",
    expect="DD114: the cycle rank 0 -> rank 1 -> rank 0",
    plant="distdoctor_drills.hang.send_recv_cycle:plant",
    ranks=(),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Everybody waits for the other's message before sending their own."""

    def exchange(training: Training) -> None:
        if training.step == 3 and training.rank < 2:
            other = 1 - training.rank
            dist.recv(torch.zeros(1), src=other)
            dist.send(torch.zeros(1), dst=other)

    training.on("after_step", exchange)
