"""One rank is a straggler in every step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SLOW_RANK = Drill(
    slug="slow-rank",
    code="DD123",
    summary="rank 1 takes 40 ms longer before each backward",
    expect="DD123: rank 0 waits for the straggler, rank 1, in each step",
    plant="distdoctor_drills.hang.slow_rank:plant",
    ranks=(1,),
    strategies=("ddp", "amp"),
    arguments={"epochs": 1},
)


def plant(training: Training) -> None:
    """Rank 1 sleeps, as if it computed more than the others."""

    def dawdle(training: Training) -> None:
        if training.rank == 1:
            time.sleep(0.04)

    training.on("before_backward", dawdle)
