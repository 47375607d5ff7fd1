"""One rank starts from different weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DIFFERENT_INITIAL_PARAMETERS = Drill(
    slug="different-initial-parameters",
    code="DD201",
    summary="rank 1 changes one weight before the first step",
    expect="DD201: the replicas start from different weights",
    plant="distdoctor_drills.replicas.different_initial_parameters:plant",
    ranks=(1,),
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """Touch the weights after the model was wrapped, and before it trains."""

    def disturb(training: Training) -> None:
        if training.rank == 1:
            with torch.no_grad():
                next(iter(training.arrangement.module.parameters())).mul_(1.01)

    training.on("training_start", disturb)
