"""A DataLoader worker never delivers its batch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader, Dataset

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

STUCK_IN_DATA = Drill(
    slug="stuck-in-data",
    code="DD115",
    summary="rank 1 waits in step 3 for a batch that its worker never finishes",
    expect="DD115: rank 1 waits for its DataLoader, whose worker is stuck",
    plant="distdoctor_drills.hang.stuck_in_data:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


class Locked(Dataset[int]):
    """Samples behind a lock that nobody opens."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
        return index


def plant(training: Training) -> None:
    """Rank 1 asks a worker for a sample that never comes."""

    def read(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            next(iter(DataLoader(Locked(), num_workers=1)))

    training.on("after_step", read)
