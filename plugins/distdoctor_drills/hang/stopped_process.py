"""One rank is stopped by a signal."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

STOPPED_PROCESS = Drill(
    slug="stopped-process",
    code="DD117",
    summary="rank 1 is stopped by SIGSTOP in step 3",
    expect="DD117: rank 1 is stopped by a signal",
    plant="distdoctor_drills.hang.stopped_process:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Somebody stops rank 1, as a debugger or a batch system does."""

    def stop(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            os.kill(os.getpid(), signal.SIGSTOP)

    training.on("after_step", stop)
