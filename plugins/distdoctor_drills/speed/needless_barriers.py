"""A barrier in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

NEEDLESS_BARRIERS = Drill(
    slug="needless-barriers",
    code="DD511",
    summary="all ranks meet in a barrier before each optimizer step",
    expect="DD511: a barrier in each step, although other collectives already keep the ranks in step",
    plant="distdoctor_drills.speed.needless_barriers:plant",
    ranks=(0, 1),
    strategies=("ddp", "amp"),
    arguments={"epochs": 1},
)


def plant(training: Training) -> None:
    """Meet, "to be safe"."""
    import torch.distributed as dist

    def meet(training: Training) -> None:
        dist.barrier()

    training.on("before_optimizer_step", meet)
