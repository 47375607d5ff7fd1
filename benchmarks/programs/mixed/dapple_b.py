import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ConvNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, 8)

    def forward(self, x):
        return self.head(self.body(x))


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=8)
    return parser.parse_args()


def main():
    args = get_args()
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(ConvNet())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    gen = torch.Generator().manual_seed(200 + rank)
    begin = time.perf_counter()
    for step in range(args.steps):
        x = torch.randn(args.batch, 3, 28, 28, generator=gen)
        y = torch.randint(0, 8, (args.batch,), generator=gen)
        x[torch.arange(args.batch), y % 3] += 0.5
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 19:
            rate = (step + 1) * args.batch / (time.perf_counter() - begin)
            print(f"step {step} loss {loss.item():.3f} {rate:.0f} images/s per rank", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
