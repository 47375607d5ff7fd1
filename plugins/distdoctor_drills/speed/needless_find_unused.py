"""DistributedDataParallel searches for unused parameters, and there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

NEEDLESS_FIND_UNUSED = Drill(
    slug="needless-find-unused",
    code="DD503",
    summary="find_unused_parameters=True for a model that uses all its parameters",
    expect="DD503: every parameter was used in every step",
    plant="distdoctor_drills.speed.needless_find_unused:plant",
    ranks=(0, 1),
    strategies=("ddp",),
    arguments={"epochs": 1, "find_unused_parameters": True},
)


def plant(training: Training) -> None:
    """The strategy's own option does it."""
