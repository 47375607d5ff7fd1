import argparse

import torch
import torch.distributed as dist

from inner import InnerLoop
from lm import build_lm
from outer import OuterNesterov
from text import TextShard


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--inner-steps", type=int, default=8)
    p.add_argument("--inner-lr", type=float, default=2e-3)
    p.add_argument("--outer-lr", type=float, default=0.7)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--batch", type=int, default=16)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = build_lm(vocab=48, width=40)
    outer = OuterNesterov(model, args.outer_lr, args.momentum)
    inner = InnerLoop(model, args.inner_lr, TextShard(rank, world, args.batch))
    for r in range(args.rounds):
        loss = inner.run(args.inner_steps)
        outer.step()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"round {r} loss {loss.item() / world:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
