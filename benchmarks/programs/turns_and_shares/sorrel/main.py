"""Behaviour cloning of a spring controller; every process rolls out springs of its own kind."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scale import RunningScale


class Springs:
    """Damped springs; stiffness and units depend on the process they live on."""

    def __init__(self, count, rank, seed):
        self.count = count
        self.gen = torch.Generator().manual_seed(seed * 1000 + rank)
        self.stiff = 1.0 + 2.0 * rank + torch.rand(count, 1, generator=self.gen)
        self.x = torch.randn(count, 1, generator=self.gen) * (1 + 3 * rank)
        self.v = torch.zeros(count, 1)

    def observe(self):
        return torch.cat([self.x, self.v, self.stiff, self.x * self.stiff * 10], 1)

    def teacher(self):
        return -(1.2 * self.x + 0.8 * self.v) / (1 + 0.1 * self.stiff)

    def step(self, force, dt=0.1):
        push = 0.3 * torch.randn(self.count, 1, generator=self.gen)
        self.v = self.v + dt * (force - self.stiff * self.x - 0.2 * self.v + push)
        self.x = self.x + dt * self.v


class Student(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                 nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


def rollout(springs, student, scale, turns, mix):
    looks, wanted = [], []
    with torch.no_grad():
        for _ in range(turns):
            look = springs.observe()
            scale.observe(look)
            best = springs.teacher()
            looks.append(look)
            wanted.append(best)
            own = student(scale(look))
            springs.step(mix * best + (1 - mix) * own)
    return torch.cat(looks), torch.cat(wanted)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--springs", type=int, default=24)
    ap.add_argument("--turns", type=int, default=16)
    ap.add_argument("--rounds", type=int, default=12)
    ap.add_argument("--passes", type=int, default=3)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--seed", type=int, default=66)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "springs"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    student = Student(args.width)
    ddp = DistributedDataParallel(student)
    opt = torch.optim.Adam(student.parameters(), lr=args.lr)
    scale = RunningScale(4)
    springs = Springs(args.springs, rank, args.seed)
    order = torch.Generator().manual_seed(args.seed * 10 + rank)

    for rnd in range(args.rounds):
        looks, wanted = rollout(springs, student, scale, args.turns, mix=max(0.2, 1 - rnd / 8))
        scale.merge()
        inputs = scale(looks)
        total, turns = torch.zeros(1), 0
        for _ in range(args.passes):
            for pick in torch.randperm(len(inputs), generator=order).split(args.batch):
                loss = F.smooth_l1_loss(ddp(inputs[pick]), wanted[pick])
                opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(student.parameters(), 1.0)
                opt.step()
                total += loss.detach()
                turns += 1
        dist.all_reduce(total)
        if rank == 0 and rnd % 3 == 2:
            print(f"round {rnd} loss {total.item() / turns / world:.4f} "
                  f"seen {int(scale.count)} looks", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"student": student.state_dict(), "scale": scale.state_dict()},
                   os.path.join(args.out, "springs.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
