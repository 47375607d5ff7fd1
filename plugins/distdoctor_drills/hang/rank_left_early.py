"""One rank exits with code 0 in the middle of the training."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RANK_LEFT_EARLY = Drill(
    slug="rank-left-early",
    code="DD109",
    summary="rank 1 exits normally after step 3",
    expect="DD109: rank 1 exited with code 0 while the others wait for it",
    plant="distdoctor_drills.hang.rank_left_early:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 thinks that it is done."""

    def leave(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            sys.stdout.flush()
            os._exit(0)

    training.on("after_step", leave)
