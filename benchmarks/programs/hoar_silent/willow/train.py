import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from monitor import ProbeMonitor


def batches(rank, batch, dim, steps):
    g = torch.Generator().manual_seed(100 + rank)
    w = torch.randn(dim, 1, generator=torch.Generator().manual_seed(0)) / dim ** 0.5
    for _ in range(steps):
        x = torch.randn(batch, dim, generator=g)
        yield x, torch.sin(x @ w)


def mlp(dim, width, depth):
    layers = [nn.Linear(dim, width), nn.GELU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.GELU(), nn.Dropout(0.05)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--batch", type=int, default=320)
    ap.add_argument("--width", type=int, default=512)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--log-every", type=int, default=20)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    dim = 64
    model = DDP(mlp(dim, args.width, args.depth))
    criterion = nn.MSELoss()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = None
    if rank == 0:
        px, py = next(batches(1000, 160, dim, 1))
        monitor = ProbeMonitor(model.module, px, py, criterion)

    for step, (x, y) in enumerate(batches(rank, args.batch, dim, args.steps), 1):
        loss = criterion(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if monitor is not None:
            monitor.update()
            if step % args.log_every == 0:
                info = " ".join(f"{k}={v:.4f}" for k, v in monitor.summary().items())
                print(f"step {step} loss={loss.item():.4f} {info}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
