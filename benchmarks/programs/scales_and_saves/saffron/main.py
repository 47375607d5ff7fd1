"""Emulator for a spice-drying curve (MLP with sine features), with a sharpness log."""
import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from curvature import Sharpness


def drying_runs(n, seed):
    g = torch.Generator().manual_seed(seed)
    c = torch.rand(n, 6, generator=g)
    t = torch.linspace(0, 1, 16)
    k = 1 + 5 * c[:, :1] * (0.5 + c[:, 1:2])
    y = torch.exp(-(k * t) ** (0.6 + c[:, 2:3])) * (1 - 0.3 * c[:, 3:4]) + 0.1 * torch.sin(6 * c[:, 4:5] * t)
    return TensorDataset(c, y + 0.01 * torch.randn(n, 16, generator=g))


class Emulator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.freq = nn.Linear(6, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.out = nn.Linear(width, 16)

    def forward(self, c):
        return self.out(self.body(torch.sin(self.freq(c) * 2)))


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = DDP(Emulator(args.width))
    raw = net.module
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    data = drying_runs(1920, 1)
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    val = drying_runs(256, 2)
    sharp = Sharpness(raw.parameters())
    history = []
    step, began = 0, time.time()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for c, y in loader:
            loss = nn.functional.mse_loss(net(c), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0:
                top = sharp.measure(lambda: nn.functional.mse_loss(raw(c), y))
                history.append({"step": step, "loss": loss.item(), "sharpness": top})
        with torch.no_grad():
            c, y = (t[rank::world] for t in val.tensors)
            err = torch.tensor([((raw(c) - y) ** 2).sum().item(), y.numel()], dtype=torch.float64)
        dist.all_reduce(err)
        if rank == 0:
            print(f"epoch {epoch} val mse {err[0] / err[1]:.5f} sharpness {history[-1]['sharpness']:.3f} "
                  f"{step / (time.time() - began):.1f} steps/s", flush=True)

    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(raw.state_dict(), args.out / "emulator.pt")
        (args.out / "sharpness.json").write_text(json.dumps(history))
    dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--width", type=int, default=192)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=28)
    ap.add_argument("--out", type=Path, default=Path("drying"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
