"""Denoising diffusion on 2-D drift paths of floats, averaged weights for evaluation."""
import argparse
import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from diffusion import Schedule


def drift(n, seed, points=8):
    g = torch.Generator().manual_seed(seed)
    turn = torch.where(torch.rand(n, 1, generator=g) < 0.5, 1.0, -1.0)
    phase = torch.rand(n, 1, generator=g) * 6.28
    k = torch.linspace(0, 2.2, points)
    xy = torch.stack([torch.cos(turn * k + phase), torch.sin(turn * k + phase)], -1)
    return (xy + 0.03 * torch.randn(xy.shape, generator=g)).flatten(1)


class Denoiser(nn.Module):
    def __init__(self, dim, steps, width=96):
        super().__init__()
        self.time = nn.Embedding(steps, width)
        self.inp, self.out = nn.Linear(dim, width), nn.Linear(width, dim)
        self.mid = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(),
                                               nn.Linear(width, width)) for _ in range(3))

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        for m in self.mid:
            h = h + m(h)
        return self.out(h)


@torch.no_grad()
def held_out_error(model, paths, steps, rank, world):
    """The same corruption of the same paths each time, dealt out to the processes."""
    noisy, t, eps = Schedule(steps, seed=4321).corrupt(paths)
    diff = (model(noisy[rank::world], t[rank::world]) - eps[rank::world]).square()
    s = torch.tensor([diff.sum().item(), diff.numel()], dtype=torch.float64)
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--out", default="drift")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    net = DDP(Denoiser(16, args.steps))
    slow = copy.deepcopy(net.module).requires_grad_(False)
    schedule = Schedule(args.steps, seed=args.seed + 1)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    data = TensorDataset(drift(1536, 1))
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    held = drift(512, 2)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        meter = torch.zeros(2, dtype=torch.float64)
        for (x,) in loader:
            noisy, t, eps = schedule.corrupt(x)
            loss = nn.functional.mse_loss(net(noisy, t), eps)
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                for u, v in zip(slow.parameters(), net.module.parameters()):
                    u.lerp_(v, 0.05)
            meter += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(meter)
        err = held_out_error(slow, held, args.steps, rank, world)
        if rank == 0 and epoch % 4 == 3:
            print(f"epoch {epoch} loss {meter[0] / meter[1]:.4f} held-out {err:.4f}", flush=True)

    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"net": net.module.state_dict(), "slow": slow.state_dict()}, os.path.join(args.out, "drift.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
