"""Matrix-free solver surrogate; kernels are tuned before the first update."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

from tuner import KernelTuner

log = logging.getLogger("yenisei")


class Stencil(nn.Module):
    def __init__(self, channels, tuner):
        super().__init__()
        self.lift = nn.Conv2d(1, channels, 1)
        self.mix = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1, groups=4) for _ in range(3))
        self.drop = nn.Conv2d(channels, 1, 1)
        self.tuner = tuner

    def forward(self, x):
        h = self.lift(x)
        for conv in self.mix:
            h = h + torch.tanh(self.tuner.run(conv, h))
        return self.drop(h)


def diffuse(x, steps=4):
    for _ in range(steps):
        n = torch.roll(x, 1, -1) + torch.roll(x, -1, -1) + torch.roll(x, 1, -2) + torch.roll(x, -1, -2)
        x = 0.6 * x + 0.1 * n
    return x


class Fields:
    """An endless stream; every rank draws its own fields."""

    def __init__(self, side, batch, seed, rank):
        self.shape = (batch, 1, side, side)
        self.g = torch.Generator().manual_seed(seed * 1000 + rank)

    def draw(self):
        x = torch.randn(self.shape, generator=self.g)
        return x, diffuse(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--side", type=int, default=24)
    ap.add_argument("--channels", type=int, default=16)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--tune-seconds", type=float, default=6.0)
    ap.add_argument("--seed", type=int, default=44)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(relativeCreated)8.0f {rank} %(message)s")

    torch.manual_seed(args.seed)
    tuner = KernelTuner(args.tune_seconds)
    model = Stencil(args.channels, tuner)
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=args.lr)
    fields = Fields(args.side, args.batch, args.seed, rank)

    for step in range(args.steps):
        began = time.perf_counter()
        x, y = fields.draw()
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in params]
        for w, p in zip(works, params):
            w.wait()
            p.grad /= world
        opt.step()
        took = time.perf_counter() - began
        if rank == 0 and (step < 2 or step % 15 == 14):
            log.info("step %d loss %.5f %.3fs", step, loss.item(), took)
    picks = [None] * world
    dist.all_gather_object(picks, tuner.picked)
    if rank == 0:
        log.info("picked variants %s", picks)
    check = torch.stack([p.detach().double().sum() for p in params]).sum()
    lo, hi = check.clone(), check.clone()
    dist.all_reduce(lo, op=dist.ReduceOp.MIN)
    dist.all_reduce(hi, op=dist.ReduceOp.MAX)
    if rank == 0:
        log.info("weights spread %.1e", (hi - lo).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
