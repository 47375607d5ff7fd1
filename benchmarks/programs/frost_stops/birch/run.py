import argparse

import torch.distributed as dist

from roles import actor, learner


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--quota", type=int, nargs="+", default=[60, 25, 40], help="rollouts of each actor")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        learner(range(1, world))
    else:
        actor(rank, args.quota[(rank - 1) % len(args.quota)])
        print(f"actor {rank} leaves", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
