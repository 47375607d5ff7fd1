"""One rank sees an overflow that the others do not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DIVERGED_SCALER = Drill(
    slug="diverged-scaler",
    code="DD802",
    summary="a gradient of rank 1 becomes infinite in step 4, after averaging",
    expect="DD802: only rank 1 skips a step",
    plant="distdoctor_drills.numerics.diverged_scaler:plant",
    ranks=(1,),
    strategies=("amp",),
)


def plant(training: Training) -> None:
    """An overflow after the reduction."""

    def overflow(training: Training) -> None:
        gradient = next(iter(training.arrangement.module.parameters())).grad
        if training.rank == 1 and training.step == 3 and gradient is not None:
            gradient.view(-1)[0] = float("inf")

    training.on("before_optimizer_step", overflow)
