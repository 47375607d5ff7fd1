"""Video and audio towers on ranks of their own, fused on a third. Clips have as many chunks as they are long."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn

from wires import Downstream, Upstream

DIM, CLASSES = 32, 4


def plan(steps, seed=4):
    """Number of video and audio chunks of every step; known to nobody downstream."""
    g = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(1, 6, (steps,), generator=g), torch.randint(2, 4, (steps,), generator=g)], 1).tolist()


def clip(step, n, width, batch, tower):
    gy = torch.Generator().manual_seed(step)
    y = torch.randint(0, CLASSES, (batch,), generator=gy)
    g = torch.Generator().manual_seed(1000 * (tower + 1) + step)
    x = torch.randn(n, batch, width, generator=g)
    x[..., tower] += y
    return x, y


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, DIM))

    def forward(self, x):
        return self.f(x)


def run_tower(index, width, args, peer):
    net = Tower(width)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    wire = Upstream(peer)
    for step, counts in enumerate(plan(args.steps)):
        x, _ = clip(step, counts[index], width, args.batch, index)
        chunks = [net(c) for c in x]
        wire.forward(chunks)
        opt.zero_grad()
        wire.backward(chunks)
        opt.step()


def run_head(args, log):
    head = nn.Sequential(nn.Linear(2 * DIM, 64), nn.SiLU(), nn.Linear(64, CLASSES))
    opt = torch.optim.Adam(head.parameters(), lr=2e-3)
    sides = [Downstream(0, (args.batch, DIM)), Downstream(1, (args.batch, DIM))]
    for step in range(args.steps):
        feats = torch.cat([s.receive() for s in sides], 1)
        _, y = clip(step, 1, 4, args.batch, 0)
        loss = nn.functional.cross_entropy(head(feats), y)
        opt.zero_grad()
        loss.backward()
        for s in sides:
            s.send_back()
        opt.step()
        if step % 20 == 0:
            log.info("step %d loss %.3f chunks %s", step, loss.item(), [len(s.got) for s in sides])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    if rank == 2:
        run_head(args, logging.getLogger("head"))
    else:
        run_tower(rank, (24, 12)[rank], args, peer=2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
