"""Truncated back-propagation through an endless stream, gradients averaged by hand."""
import argparse
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Oscillators:
    """`lanes` endless signals; a lane changes its period now and then."""

    def __init__(self, lanes, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.phase = 6.28 * torch.rand(lanes, generator=self.gen)
        self.speed = 0.2 + 0.4 * torch.rand(lanes, generator=self.gen)

    def tick(self):
        change = torch.rand(len(self.phase), generator=self.gen) < 0.02
        new = 0.2 + 0.4 * torch.rand(len(self.phase), generator=self.gen)
        self.speed = torch.where(change, new, self.speed)
        self.phase = self.phase + self.speed
        return torch.stack([self.phase.sin(), (2 * self.phase).cos()], 1)


class Cell(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.rnn = nn.GRUCell(2, d)
        self.read = nn.Linear(d, 2)

    def forward(self, x, h):
        h = self.rnn(x, h)
        return self.read(h), h


def average(params, world):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in params:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ticks", type=int, default=800)
    ap.add_argument("--window", type=int, default=16)
    ap.add_argument("--lanes", type=int, default=24)
    ap.add_argument("--width", type=int, default=48)
    ap.add_argument("--seed", type=int, default=44)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    cell = Cell(args.width)
    params = list(cell.parameters())
    opt = torch.optim.RMSprop(params, lr=2e-3)
    stream = Oscillators(args.lanes, args.seed + 1000 * rank)
    h = torch.zeros(args.lanes, args.width)
    x = stream.tick()
    errors, recent = [], deque(maxlen=64)
    trace = []

    for tick in range(1, args.ticks + 1):
        nxt = stream.tick()
        guess, h = cell(x, h)
        errors.append(F.mse_loss(guess, nxt))
        recent.append(guess.detach())
        x = nxt
        if tick % args.window == 0:
            loss = torch.stack(errors).mean()
            opt.zero_grad()
            loss.backward()
            average(params, world)
            nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            h = h.detach()
            errors.clear()
            trace.append(loss.item())
        if tick % 160 == 0:
            m = torch.tensor([sum(trace) / len(trace), torch.stack(list(recent)).std().item()])
            dist.all_reduce(m)
            trace.clear()
            if rank == 0:
                print(f"tick {tick} mse {m[0] / world:.4f} spread {m[1] / world:.3f}", flush=True)
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(cell.state_dict(), args.out / "cell.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
