"""A checkpoint that a thread is still writing when the job ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill
from distdoctor_drills.checkpoint.shared_folder import shared_folder

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNFINISHED_CHECKPOINT = Drill(
    slug="unfinished-checkpoint",
    code="DD707",
    summary="rank 0 saves in a thread that is never joined",
    expect="DD707: rank 0 ended while its checkpoint thread was still running",
    plant="distdoctor_drills.checkpoint.unfinished_checkpoint:plant",
    ranks=(0,),
    strategies=("ddp",),
    arguments={"steps": 6},
)
PIECES = 100_000  # of a copy to a slow place: more than any job waits for


def plant(training: Training) -> None:
    """Where the checkpoint is copied to is slow."""

    def save(training: Training) -> None:
        path, state = shared_folder(training) / "last.pt", training.arrangement.module.state_dict()
        written = threading.Event()
        if training.rank == 0:
            threading.Thread(target=_save_and_copy, args=(state, path, written), name="saver", daemon=True).start()
            written.wait()

    training.on("training_start", save)


def _save_and_copy(state: dict[str, torch.Tensor], path: Path, written: threading.Event) -> None:
    torch.save(state, path)
    written.set()
    for _ in range(PIECES):
        time.sleep(0.05)  # one piece of it
