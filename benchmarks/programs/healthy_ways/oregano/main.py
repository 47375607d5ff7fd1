"""Three-stage pipeline with a one-forward-one-backward schedule over send and recv."""
import argparse
import os
from collections import deque
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    steps: int = 60
    microbatches: int = 6
    micro_size: int = 16
    features: int = 20
    width: int = 48
    classes: int = 5
    lr: float = 2e-3
    seed: int = 17
    eval_every: int = 20


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.net(self.norm(x))


def build_stage(cfg, rank, world):
    torch.manual_seed(cfg.seed + rank)
    layers = [Residual(cfg.width) for _ in range(2)]
    if rank == 0:
        layers.insert(0, nn.Linear(cfg.features, cfg.width))
    if rank == world - 1:
        layers += [nn.LayerNorm(cfg.width), nn.Linear(cfg.width, cfg.classes)]
    return nn.Sequential(*layers)


class Source:
    """The first stage needs inputs, the last needs labels; both draw the same stream."""

    def __init__(self, cfg, seed):
        self.cfg, self.gen = cfg, torch.Generator().manual_seed(seed)
        g = torch.Generator().manual_seed(999)
        self.teacher = nn.Sequential(nn.Linear(cfg.features, 32), nn.Tanh(), nn.Linear(32, cfg.classes))
        for p in self.teacher.parameters():
            p.data = torch.randn(p.shape, generator=g) * 0.8
            p.requires_grad_(False)

    def draw(self, count):
        x = torch.randn(count, self.cfg.micro_size, self.cfg.features, generator=self.gen)
        return x, self.teacher(x).argmax(-1)


class Pipeline:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.world - 1
        self.stage = build_stage(cfg, self.rank, self.world)
        self.opt = torch.optim.Adam(self.stage.parameters(), lr=cfg.lr)
        self.pending = []

    def _post(self, tensor, dst):
        self.pending.append((dist.isend(tensor, dst=dst), tensor))

    def _flush(self):
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()

    def _receive(self, src):
        buf = torch.empty(self.cfg.micro_size, self.cfg.width)
        dist.recv(buf, src=src)
        return buf

    def _forward(self, x):
        inp = x if self.first else self._receive(self.rank - 1).requires_grad_(True)
        out = self.stage(inp)
        if not self.last:
            self._post(out.detach().contiguous(), self.rank + 1)
        return inp, out

    def _backward(self, inp, out, target):
        loss = None
        if self.last:
            loss = F.cross_entropy(out, target)
            (loss / self.cfg.microbatches).backward()
        else:
            out.backward(self._receive(self.rank + 1))
        if not self.first:
            self._post(inp.grad.contiguous(), self.rank - 1)
        return 0.0 if loss is None else loss.item()

    def train_step(self, xs, ys):
        m = self.cfg.microbatches
        self.stage.train()
        self.opt.zero_grad(set_to_none=True)
        warmup = min(self.world - 1 - self.rank, m)
        held, fwd, bwd, total = deque(), 0, 0, 0.0
        for _ in range(warmup):
            held.append(self._forward(xs[fwd]))
            fwd += 1
        while bwd < m:
            if fwd < m:
                held.append(self._forward(xs[fwd]))
                fwd += 1
            inp, out = held.popleft()
            total += self._backward(inp, out, ys[bwd])
            bwd += 1
        self._flush()
        norm = self._clip(1.0)
        self.opt.step()
        return total / m, norm

    def _clip(self, limit):
        sq = sum(p.grad.pow(2).sum() for p in self.stage.parameters())
        dist.all_reduce(sq)
        norm = sq.sqrt()
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        for p in self.stage.parameters():
            p.grad.mul_(scale)
        return norm.item()

    @torch.no_grad()
    def evaluate(self, xs, ys):
        self.stage.eval()
        right = torch.zeros(1)
        for x, y in zip(xs, ys):
            _, out = self._forward(x)
            if self.last:
                right += (out.argmax(-1) == y).sum()
        self._flush()
        dist.broadcast(right, src=self.world - 1)
        return right.item() / ys.numel()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=Config.steps)
    p.add_argument("--microbatches", type=int, default=Config.microbatches)
    a = p.parse_args()
    cfg = Config(steps=a.steps, microbatches=a.microbatches)
    dist.init_process_group("gloo")
    pipe = Pipeline(cfg)
    source = Source(cfg, seed=cfg.seed)
    held = Source(cfg, seed=cfg.seed + 1).draw(24)
    for step in range(cfg.steps):
        loss, norm = pipe.train_step(*source.draw(cfg.microbatches))
        if pipe.last and step % 10 == 0:
            print(f"step {step:3d} loss {loss:.4f} norm {norm:.3f}", flush=True)
        if (step + 1) % cfg.eval_every == 0:
            acc = pipe.evaluate(*held)
            if pipe.first:
                print(f"step {step + 1:3d} held-out accuracy {acc:.3f}", flush=True)
    os.makedirs("runs/oregano", exist_ok=True)
    torch.save(pipe.stage.state_dict(), f"runs/oregano/stage{pipe.rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
