import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from schedule import Stage


def data(n, seed, dim):
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(dim, 8, generator=torch.Generator().manual_seed(0)) / dim ** 0.5
    x = torch.randn(n, dim, generator=g)
    return x, (torch.sin(2 * x @ a).sum(1) > 0).long() + 2 * ((x @ a)[:, 0] > 0).long()


class Residual(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 2 * w), nn.GELU(), nn.Linear(2 * w, w))

    def forward(self, x):
        return x + self.f(x)


def build_stage(rank, world, dim, width, blocks):
    torch.manual_seed(10 + rank)
    layers = [Residual(width) for _ in range(blocks)]
    if rank == 0:
        layers.insert(0, nn.Linear(dim, width))
    if rank == world - 1:
        layers.append(nn.Linear(width, 4))
    return nn.Sequential(*layers)


@torch.no_grad()
def evaluate(stage, x, y):
    h = x
    if not stage.first:
        h = torch.empty(len(x), stage.shape[1])
        dist.recv(h, src=stage.rank - 1)
    h = stage.module(h)
    acc = torch.zeros(1)
    if stage.last:
        acc[0] = (h.argmax(1) == y).float().mean()
    else:
        dist.send(h, dst=stage.rank + 1)
    dist.broadcast(acc, src=stage.world - 1)
    return acc.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--width", type=int, default=128)
    ap.add_argument("--blocks", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = data(8192, 1, 32)
    vx, vy = data(1024, 2, 32)
    module = build_stage(rank, world, 32, args.width, args.blocks)
    stage = Stage(module, rank, world, (args.batch // args.micro, args.width))
    opt = torch.optim.Adam(module.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(3)
    for step in range(args.steps):
        ix = torch.randint(0, len(x), (args.batch,), generator=order)
        opt.zero_grad()
        loss = stage.run(x[ix].chunk(args.micro), y[ix].chunk(args.micro), F.cross_entropy)
        opt.step()
        if (step + 1) % 50 == 0:
            acc = evaluate(stage, vx, vy)
            if stage.last:
                print(f"step {step + 1} loss {loss.item():.4f} acc {acc:.3f}", flush=True)
    torch.save({"stage": rank, "model": module.state_dict(), "opt": opt.state_dict()}, f"stage{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
