"""One rank changes its weights between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DRIFTING_PARAMETERS = Drill(
    slug="drifting-parameters",
    code="DD203",
    summary="rank 1 scales a layer by 1.01 after step 4",
    expect="DD203: a parameter changed on rank 1 only, between steps 4 and 5",
    plant="distdoctor_drills.replicas.drifting_parameters:plant",
    ranks=(1,),
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """Do to one replica what should be done to all."""

    def disturb(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            with torch.no_grad():
                next(iter(training.arrangement.module.parameters())).mul_(1.01)

    training.on("after_step", disturb)
