import os
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Placement:
    rank: int
    world: int

    @property
    def main(self):
        return self.rank == 0


def placement():
    """Where this process stands in the job."""
    return Placement(
        rank=int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))),
        world=int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", 1))),
    )


def start(backend="gloo"):
    dist.init_process_group(backend, init_method="env://")
    return placement()
