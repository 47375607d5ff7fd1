import argparse

import torch
import torch.distributed as dist

from server import serve
from trainer import train


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--points", type=int, default=32)
    p.add_argument("--seed", type=int, default=13)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workers = list(range(world - 1))
    group = dist.new_group(workers)
    if rank == world - 1:
        serve(args, workers)
    else:
        train(args, rank, source=world - 1, group=group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
