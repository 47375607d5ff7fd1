"""One rank lowers its learning rate because of its own loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DIVERGING_SCHEDULE = Drill(
    slug="diverging-schedule",
    code="DD218",
    summary="rank 1 halves its learning rate after step 4",
    expect="DD218: the learning rate of rank 1 is half that of the others",
    plant="distdoctor_drills.replicas.diverging_schedule:plant",
    ranks=(1,),
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """A plateau that only one rank sees."""

    def lower(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            for group in training.optimizer.param_groups:
                group["lr"] *= 0.5

    training.on("after_step", lower)
