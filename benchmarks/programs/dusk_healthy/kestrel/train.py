"""Hand-written pipeline parallelism: unequal stages, one process per stage.

Only the first stage reads images and only the last one reads labels; weight-tied or replicated
parameters do not exist, so nothing is ever all-reduced except the gradient norm.
"""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from schedule import OneFOneB

DIM = 320


class Unit(nn.Module):
    def __init__(self, index):
        super().__init__()
        torch.manual_seed(100 + index)        # a layer is the same wherever it lives
        self.norm = nn.LayerNorm(DIM)
        self.net = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        return x + self.net(self.norm(x))


def build_stage(rank, world, layers=9):
    """The first stages get more layers, the last one has the wide head."""
    w = torch.linspace(1.3, 0.7, world)
    cuts = [0] + [round(v) for v in (w.cumsum(0) / w.sum() * layers).tolist()]
    mods = [Unit(i) for i in range(cuts[rank], cuts[rank + 1])]
    if rank == 0:
        torch.manual_seed(1)
        mods.insert(0, nn.Linear(64, DIM))
    if rank == world - 1:
        torch.manual_seed(2)
        mods.append(nn.Linear(DIM, 100))
    return nn.Sequential(*mods)


def clip_global(params, max_norm):
    sq = torch.stack([p.grad.pow(2).sum() for p in params]).sum()
    dist.all_reduce(sq)
    norm = sq.sqrt()
    for p in params:
        p.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--micro", type=int, default=6)
    ap.add_argument("--micro-size", type=int, default=24)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = build_stage(rank, world)
    opt = torch.optim.AdamW(stage.parameters(), lr=args.lr)
    pipe = OneFOneB(stage, (args.micro_size, DIM), F.cross_entropy)
    print(f"stage {rank}: {sum(p.numel() for p in stage.parameters())} parameters", flush=True)
    centers = torch.randn(100, 64, generator=torch.Generator().manual_seed(17))
    n = args.micro * args.micro_size
    for step in range(args.steps):
        t0 = time.time()
        g = torch.Generator().manual_seed(step)
        labels = torch.randint(100, (n,), generator=g)
        inputs = targets = None
        if pipe.first:
            inputs = (centers[labels] + 1.5 * torch.randn(n, 64, generator=g)).chunk(args.micro)
        if pipe.last:
            targets = labels.chunk(args.micro)
        opt.zero_grad()
        loss = pipe.run(inputs, targets, args.micro)
        norm = clip_global(list(stage.parameters()), 1.0)
        opt.step()
        if pipe.last and step % 10 == 0:
            print(f"step {step} loss {loss:.5f} grad norm {norm:.4f} {time.time() - t0:.2f}s", flush=True)
    out = args.out or tempfile.mkdtemp()
    os.makedirs(out, exist_ok=True)
    torch.save(stage.state_dict(), os.path.join(out, f"stage{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
