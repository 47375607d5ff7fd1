"""A folder for the checkpoints of a drill, the same on every rank, removed when the training ends."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training


def shared_folder(training: Training) -> Path:
    """All ranks call it together."""
    names = [tempfile.mkdtemp(prefix="distdoctor-drill-") if training.rank == 0 else ""]
    dist.broadcast_object_list(names)

    def remove(_: Training) -> None:
        dist.barrier()
        if training.rank == 0:
            shutil.rmtree(names[0], ignore_errors=True)

    training.on("training_end", remove)
    return Path(names[0])
