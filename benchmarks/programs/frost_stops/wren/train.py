import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from pulse import Pulse


class Autoencoder(nn.Module):
    def __init__(self, dim=30, code=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 24), nn.ReLU(), nn.Linear(24, code))
        self.dec = nn.Sequential(nn.Linear(code, 24), nn.ReLU(), nn.Linear(24, dim))

    def forward(self, x):
        return self.dec(self.enc(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--period", type=float, default=0.25)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(14)
    basis = torch.randn(6, 30)
    model = DDP(Autoencoder())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    pulse = Pulse(rounds=16, period=args.period)
    g = torch.Generator().manual_seed(80 + rank)
    pulse.start()
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch, 6, generator=g) @ basis
        time.sleep(0.01)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        pulse.samples += args.batch
        if rank == 0 and step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    history = pulse.finish()
    if rank == 0:
        print("samples over time", history, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
