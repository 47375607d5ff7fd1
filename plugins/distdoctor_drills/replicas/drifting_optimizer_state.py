"""One rank's optimizer state changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DRIFTING_OPTIMIZER_STATE = Drill(
    slug="drifting-optimizer-state",
    code="DD205",
    summary="rank 1 doubles one second moment after step 4",
    expect="DD205: the optimizer state of one parameter differs",
    plant="distdoctor_drills.replicas.drifting_optimizer_state:plant",
    ranks=(1,),
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """A resumed optimizer state that only some ranks have loaded."""

    def forget(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            first = next(iter(training.arrangement.module.parameters()))
            training.optimizer.state[first]["exp_avg_sq"].mul_(2)

    training.on("after_step", forget)
