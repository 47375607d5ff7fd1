"""Every rank loads without map_location."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distdoctor.offers import Drill
from distdoctor_drills.checkpoint.shared_folder import shared_folder

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

LOAD_WITHOUT_MAP_LOCATION = Drill(
    slug="load-without-map-location",
    code="DD702",
    summary="every rank loads the checkpoint onto the device it was saved from",
    expect="DD702: a note on the CPU, a warning where tensors ended up on another rank's GPU",
    plant="distdoctor_drills.checkpoint.load_without_map_location:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"steps": 6},
)


def plant(training: Training) -> None:
    """The first weights are saved and loaded once more."""

    def restore(training: Training) -> None:
        path, module = shared_folder(training) / "model.pt", training.arrangement.module
        if training.rank == 0:
            torch.save(module.state_dict(), path)
        dist.barrier()
        module.load_state_dict(torch.load(path, weights_only=True))

    training.on("training_start", restore)
