"""Gradients are accumulated, and averaged in every micro-step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISSING_NO_SYNC = Drill(
    slug="missing-no-sync",
    code="DD501",
    summary="four micro-steps for each step, all of them average",
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
