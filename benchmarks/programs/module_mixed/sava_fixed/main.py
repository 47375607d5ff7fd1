import argparse
from datetime import timedelta

import torch
import torch.distributed as dist

from gan import GAN
from nets import Shapes


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--ceiling", type=float, default=0.8)
    args = p.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=80))
    rank = dist.get_rank()
    torch.manual_seed(34)
    gan = GAN(args.batch, ceiling=args.ceiling)
    data = Shapes(700 + rank)
    for step in range(args.steps):
        loss = gan.step(data)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} gen {loss:.3f} d-accuracy {gan.balance.accuracy:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
