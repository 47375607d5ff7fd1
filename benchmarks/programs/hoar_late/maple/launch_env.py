import os
from dataclasses import dataclass


@dataclass
class Env:
    rank: int
    world_size: int
    local_rank: int


def discover():
    """Works under torchrun, SLURM and a plain `python train.py`."""
    if not os.getenv("MASTER_ADDR"):
        os.environ["MASTER_ADDR"] = os.getenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    if not os.getenv("MASTER_PORT"):
        os.environ["MASTER_PORT"] = "12355"
    rank = int(os.getenv("RANK", os.getenv("SLURM_PROCID", "0")))
    world = int(os.getenv("WORLD_SIZE", os.getenv("SLURM_NTASKS", "1")))
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world)
    return Env(rank, world, int(os.getenv("LOCAL_RANK", "0")))
