"""Gradients are averaged one parameter at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MANY_SMALL_COLLECTIVES = Drill(
    slug="many-small-collectives",
    code="DD508",
    summary="one all_reduce per parameter, instead of DistributedDataParallel's buckets",
    expect="DD508: each step issues as many all_reduce calls as there are parameters, one after the other",
    plant="distdoctor_drills.speed.many_small_collectives:plant",
    ranks=(0, 1),
    strategies=("ddp",),
    arguments={"steps": 24, "by_hand": True},
)


def plant(training: Training) -> None:
    """The strategy's own option does it."""
