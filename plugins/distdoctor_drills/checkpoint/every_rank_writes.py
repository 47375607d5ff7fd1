"""All ranks write the same file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill
from distdoctor_drills.checkpoint.shared_folder import shared_folder

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

EVERY_RANK_WRITES = Drill(
    slug="every-rank-writes",
    code="DD703",
    summary="all ranks save the model to the same path",
    expect="DD703: all ranks write the same path at the same step",
    plant="distdoctor_drills.checkpoint.every_rank_writes:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"steps": 6},
)


def plant(training: Training) -> None:
    """No rank is asked which one it is."""

    def prepare(training: Training) -> None:
        path = shared_folder(training) / "last.pt"

        def save(training: Training) -> None:
            if training.step == 3:
                torch.save(training.arrangement.module.state_dict(), path)

        training.on("after_step", save)

    training.on("training_start", prepare)
