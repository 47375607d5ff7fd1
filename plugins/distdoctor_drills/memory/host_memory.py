"""A DataLoader worker makes a batch that is larger than all shared memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

HOST_MEMORY = Drill(
    slug="host-memory",
    code="DD413",
    summary="a worker of rank 1 makes a batch in step 3 that is larger than /dev/shm",
    expect="DD413: a DataLoader worker ran out of shared memory",
    plant="distdoctor_drills.memory.host_memory:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor"),
)


class Huge(Dataset[Tensor]):
    """Samples of so many bytes, that take no room until they are copied into a batch."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.zeros(1, dtype=torch.uint8).expand(self.size)


def plant(training: Training) -> None:
    """Rank 1 asks a worker for a batch that is handed over in shared memory, and does not fit there."""

    def read(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            shared = os.statvfs("/dev/shm")  # noqa: S108 - where torch puts the batches of DataLoader workers
            batches = DataLoader(Huge(shared.f_blocks * shared.f_frsize), batch_size=2, num_workers=1)
            next(iter(batches))

    training.on("after_step", read)
