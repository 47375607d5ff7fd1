"""The other ranks load what rank 0 is still writing."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distdoctor.offers import Drill
from distdoctor_drills.checkpoint.shared_folder import shared_folder

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RANK_ZERO_BARRIER_MISSING = Drill(
    slug="rank-zero-barrier-missing",
    code="DD705",
    summary="rank 0 saves a better model, and the others load it without waiting",
    expect="DD705: rank 1 loaded the file before rank 0 had written it",
    plant="distdoctor_drills.checkpoint.rank_zero_barrier_missing:plant",
    ranks=(1,),
    strategies=("ddp",),
    arguments={"steps": 6},
)


def plant(training: Training) -> None:
    """A file of before is there, so nobody fails."""

    def restore(training: Training) -> None:
        path, module = shared_folder(training) / "best.pt", training.arrangement.module
        if training.rank == 0:
            torch.save(module.state_dict(), path)
        dist.barrier()
        if training.rank == 0:
            time.sleep(0.3)  # a slow disk
            torch.save(module.state_dict(), f"{path}.tmp")
            os.replace(f"{path}.tmp", path)
        module.load_state_dict(torch.load(path, map_location=training.device, weights_only=True))

    training.on("training_start", restore)
