import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer import Clock, Trainer


def stream(rank, steps):
    g = torch.Generator().manual_seed(30 + rank)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=g)
        yield x, (x ** 2).sum(1, keepdim=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-steps", type=int, default=5000)
    ap.add_argument("--seconds", type=float, default=3.0)
    ap.add_argument("--target", type=float, default=0.01)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    state = Trainer(model, opt, Clock(a.seconds), a.target).fit(stream(rank, a.max_steps))
    print(f"rank {rank} stop={state.reason} step={state.step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
