"""Momentum SGD with state sharded over the ranks; each rank writes its own part of the snapshot."""
import argparse
import logging
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("hornbeam")


class ShardedMomentum:
    """Rank r owns every world-th tensor: it alone keeps the momentum and sends out the new values."""

    def __init__(self, params, lr, mu):
        self.params, self.lr, self.mu = list(params), lr, mu
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.buf = {i: torch.zeros_like(p) for i, p in enumerate(self.params) if i % self.world == self.rank}

    @torch.no_grad()
    def step(self):
        for i, p in enumerate(self.params):
            dist.reduce(p.grad, dst=i % self.world)
            if i in self.buf:
                self.buf[i].mul_(self.mu).add_(p.grad, alpha=1 / self.world)
                p.sub_(self.buf[i], alpha=self.lr)
            dist.broadcast(p.data, src=i % self.world)
            p.grad = None

    def state(self):
        return {i: b.clone() for i, b in self.buf.items()}


def run_name(root, tag):
    name = f"{tag}-{time.time_ns()}"
    return pathlib.Path(root) / name


def save(folder, model, opt, step):
    folder.mkdir(parents=True, exist_ok=True)
    if opt.rank == 0:
        torch.save({"model": model.state_dict(), "step": step}, folder / "model.pt")
    torch.save(opt.state(), folder / f"momentum_{opt.rank:02d}.pt")
    dist.barrier()


def gather_for_export(folder, model):
    """Joins all momentum parts found in the folder into one file, for the analysis notebook."""
    parts = {}
    for f in sorted(folder.glob("momentum_*.pt")):
        parts.update(torch.load(f, weights_only=True))
    names = [n for n, _ in model.named_parameters()]
    torch.save({names[i]: v for i, v in parts.items()}, folder / "momentum_full.pt")
    return parts


def data(seed, n=400):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 14, generator=g)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--root", default="/tmp/hornbeam_runs")
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--lr", type=float, default=0.1)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    folder = run_name(args.root, "xor")
    x, y = data(3)
    x, y = x[rank::world], y[rank::world]
    model = nn.Sequential(nn.Linear(14, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    opt = ShardedMomentum(model.parameters(), args.lr, 0.9)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        pick = torch.randint(0, len(x), (16,), generator=gen)
        loss = F.cross_entropy(model(x[pick]), y[pick])
        loss.backward()
        opt.step()
        if step % 15 == 0:
            save(folder / f"step{step}", model, opt, step)
            if rank == 0:
                log.info("step %d loss %.4f saved to %s", step, loss.item(), folder)
    if rank == 0:
        parts = gather_for_export(folder / f"step{args.steps}", model)
        log.info("exported %d momentum tensors", len(parts))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
