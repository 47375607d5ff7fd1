import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer import Trainer


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=14)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--width", type=int, default=96)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(27)
    net = nn.Sequential(nn.Linear(24, args.width), nn.SiLU(), nn.Linear(args.width, args.width), nn.SiLU(),
                        nn.Linear(args.width, args.width), nn.SiLU(), nn.Linear(args.width, 4))
    mix = torch.randn(24, 4) / 24 ** 0.5
    gen = torch.Generator().manual_seed(60 + rank)

    def batches():
        x = torch.randn(args.batch, 24, generator=gen)
        return x, torch.sin(2 * x @ mix)

    ddp = DDP(net)
    opt = torch.optim.Adam(ddp.parameters(), lr=args.lr)
    Trainer(ddp, opt, batches, args.epochs, args.steps).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
