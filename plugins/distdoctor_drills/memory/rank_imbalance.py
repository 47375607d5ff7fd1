"""One rank keeps data for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

FLOATS = 24 << 20

RANK_IMBALANCE = Drill(
    slug="rank-imbalance",
    code="DD405",
    summary="only rank 0 keeps a buffer of 96 MiB",
    expect="DD405: rank 0 holds 96 MiB more than rank 1, most of it buffers",
    plant="distdoctor_drills.memory.rank_imbalance:plant",
    ranks=(0,),
    strategies=("ddp",),
    arguments={"steps": 12},
)


def plant(training: Training) -> None:
    """Rank 0 keeps a table that is for all."""
    if training.rank == 0:
        training.on("training_start", keep)


def keep(training: Training) -> None:
    """Made when the model is wrapped already, so that nobody broadcasts it."""
    module = training.arrangement.module
    module.register_buffer("of_all_ranks", next(module.parameters()).new_ones(FLOATS), persistent=False)
