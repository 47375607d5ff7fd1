import contextlib
import logging
import os
import pickle
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("session")


def console_for_first_rank(rank):
    """One copy of the output is enough: the other ranks write to the null device."""
    if rank != 0:
        sys.stdout = open(os.devnull, "w")
        sys.stderr = open(os.devnull, "w")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")


@contextlib.contextmanager
def process_group():
    dist.init_process_group("gloo")
    console_for_first_rank(dist.get_rank())
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


class PostMortem:
    """Keeps the last batches and stores them when a step fails."""

    def __init__(self, rank, keep=64):
        self.rank = rank
        self.keep = keep
        self.batches = []

    def remember(self, step, batch):
        self.batches.append((step, [t.clone() for t in batch]))
        del self.batches[:-self.keep]

    def store(self, model):
        folder = Path(tempfile.mkdtemp(prefix=f"scythe-crash-{self.rank}-"))
        for name, tensor in model.state_dict().items():
            torch.save(tensor, folder / f"{name}.pt")
        for step, batch in self.batches:
            (folder / f"batch{step:05d}.pkl").write_bytes(pickle.dumps(batch))
        return folder
