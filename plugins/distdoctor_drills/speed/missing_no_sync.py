"""Gradients are accumulated, but averaged in every micro-batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISSING_NO_SYNC = Drill(
    slug="missing-no-sync",
    code="DD501",
    summary="each step has four micro-batches, and all of them average gradients",
    expect="DD501: each step averages gradients 4 times",
    plant="distdoctor_drills.speed.missing_no_sync:plant",
    ranks=(0, 1),
    strategies=("ddp",),
    arguments={"accumulate": 4, "epochs": 1},
)


def plant(training: Training) -> None:
    """Forget no_sync."""

    def forget(training: Training) -> None:
        training.arrangement.gradients_stay_local = nullcontext  # type: ignore[method-assign]

    training.on("training_start", forget)
