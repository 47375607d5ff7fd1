"""The state dict of the wrapper is loaded into the bare module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distdoctor.offers import Drill
from distdoctor_drills.checkpoint.shared_folder import shared_folder

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SAVED_WRAPPER = Drill(
    slug="saved-wrapper",
    code="DD701",
    summary="the wrapped model is saved, then loaded into the bare one with strict=False",
    expect="DD701: load_state_dict loaded nothing, the names differ by `module.`",
    plant="distdoctor_drills.checkpoint.saved_wrapper:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"steps": 6},
)


def plant(training: Training) -> None:
    """Nothing fits, and nobody reads the answer."""

    def restore(training: Training) -> None:
        path = shared_folder(training) / "model.pt"
        if training.rank == 0:
            torch.save(training.arrangement.model.state_dict(), path)
        dist.barrier()
        state = torch.load(path, map_location=training.device, weights_only=True)
        training.arrangement.module.load_state_dict(state, strict=False)

    training.on("training_start", restore)
