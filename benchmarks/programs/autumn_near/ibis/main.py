"""Shared trunk, one task head per process; every process sees the same mini-batch."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

TASKS = ["depth", "class", "angle", "count"]


class Trunk(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU())
        self.norm = nn.LayerNorm(h)

    def forward(self, x):
        return self.norm(self.net(x))


class Head(nn.Module):
    OUT = {"depth": 1, "class": 7, "angle": 2, "count": 1}

    def __init__(self, task, h):
        super().__init__()
        self.task = task
        self.scale = nn.Parameter(torch.zeros(()))
        self.fc = nn.Sequential(nn.Linear(h, h // 2), nn.SiLU(), nn.Linear(h // 2, self.OUT[task]))

    def loss(self, z, target):
        o = self.fc(z)
        if self.task == "class":
            raw = F.cross_entropy(o, target)
        elif self.task == "count":
            raw = F.smooth_l1_loss(o.squeeze(-1), target.log1p())
        else:
            raw = F.mse_loss(o, target)
        return raw * torch.exp(-self.scale) + 0.5 * self.scale


class World:
    def __init__(self, d):
        g = torch.Generator().manual_seed(44)
        self.d, self.gen = d, torch.Generator().manual_seed(45)
        self.w = {t: torch.randn(d, Head.OUT[t], generator=g) / d ** 0.5 for t in TASKS}

    def sample(self, n):
        x = torch.randn(n, self.d, generator=self.gen)
        raw = {t: x @ self.w[t] for t in TASKS}
        return x, {"depth": raw["depth"].sin(), "class": raw["class"].argmax(1),
                   "angle": F.normalize(raw["angle"], dim=1),
                   "count": raw["count"].squeeze(1).exp().clamp(max=20).round()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=160)
    p.add_argument("--hidden", type=int, default=160)
    p.add_argument("--lr", type=float, default=1.5e-3)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="[%(process)d] %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(33)
    trunk = Trunk(40, args.hidden)
    mine = TASKS[rank::world]
    torch.manual_seed(500 + rank)
    heads = nn.ModuleDict({t: Head(t, args.hidden) for t in mine})
    opt = torch.optim.AdamW([dict(params=trunk.parameters(), lr=args.lr), dict(params=heads.parameters(), lr=2 * args.lr)])
    source = World(40)
    for step in range(1, args.steps + 1):
        x, target = source.sample(args.batch)
        z = trunk(x)
        losses = {t: heads[t].loss(z, target[t]) for t in mine}
        opt.zero_grad()
        sum(losses.values()).backward()
        grads = [q.grad for q in trunk.parameters()]
        flat = nn.utils.parameters_to_vector(grads)
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / len(TASKS), grads)
        nn.utils.clip_grad_norm_(trunk.parameters(), 1.0)
        opt.step()
        if step % 50 == 0:
            logging.info("step %d %s", step, " ".join(f"{t}={v.item():.3f}" for t, v in losses.items()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
