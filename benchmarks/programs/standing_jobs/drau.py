"""Sharded optimizer state, written by one rank after the other to spare the disk."""
import argparse
import hashlib
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("zero")


@dataclass
class Config:
    steps: int = 150
    batch: int = 24
    dim: int = 40
    lr: float = 3e-3
    save_at: tuple = (150,)
    write_seconds: float = 2.8
    seed: int = 161


class ShardedAdam:
    """Each rank owns a slice of the flat parameter vector and its moments."""

    def __init__(self, model, lr, betas=(0.9, 0.99), eps=1e-8):
        self.model, self.lr, self.betas, self.eps = model, lr, betas, eps
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        n = sum(p.numel() for p in model.parameters())
        self.slice = -(-n // self.world)
        self.n, self.t = n, 0
        self.m = torch.zeros(self.slice)
        self.v = torch.zeros(self.slice)

    def padded(self, flat):
        return F.pad(flat, (0, self.slice * self.world - self.n))

    @torch.no_grad()
    def step(self):
        grad = self.padded(torch.cat([p.grad.flatten() for p in self.model.parameters()]))
        dist.all_reduce(grad)
        grad /= self.world
        full = self.padded(nn.utils.parameters_to_vector(self.model.parameters()))
        lo = self.rank * self.slice
        g, w = grad[lo:lo + self.slice], full[lo:lo + self.slice].clone()
        self.t += 1
        b1, b2 = self.betas
        self.m.mul_(b1).add_(g, alpha=1 - b1)
        self.v.mul_(b2).addcmul_(g, g, value=1 - b2)
        mh, vh = self.m / (1 - b1 ** self.t), self.v / (1 - b2 ** self.t)
        w -= self.lr * mh / (vh.sqrt() + self.eps)
        parts = [torch.empty(self.slice) for _ in range(self.world)]
        dist.all_gather(parts, w)
        nn.utils.vector_to_parameters(torch.cat(parts)[: self.n], self.model.parameters())

    def state(self):
        return {"m": self.m, "v": self.v, "t": self.t}


class TurnWriter:
    def __init__(self, folder, seconds):
        self.folder, self.seconds = Path(folder), seconds
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def _write(self, step, state):
        path = self.folder / f"optim-{step}-{self.rank}.pt"
        torch.save(state, path)
        time.sleep(self.seconds)
        log.info("wrote %s (%s)", path.name, hashlib.md5(path.read_bytes()).hexdigest()[:8])

    def save(self, step, state):
        for turn in range(self.world):
            if turn == self.rank:
                self._write(step, state)
            dist.barrier()


def batch_for(cfg, step, rank, world):
    g = torch.Generator().manual_seed(cfg.seed * 7919 + step * world + rank)
    x = torch.randn(cfg.batch, cfg.dim, generator=g)
    y = (x[:, :4].sum(1) * 0.4).sin() + x[:, 1] * x[:, 3] * 0.3
    return x, y[:, None]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--write-seconds", type=float, default=2.8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(message)s")
    cfg = Config(steps=args.steps, write_seconds=args.write_seconds, save_at=(args.steps,))
    torch.manual_seed(cfg.seed)
    model = nn.Sequential(nn.Linear(cfg.dim, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(),
                          nn.Linear(64, 1))
    opt = ShardedAdam(model, cfg.lr)
    box = [tempfile.mkdtemp(prefix="zero_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    writer = TurnWriter(box[0], cfg.write_seconds)
    for step in range(1, cfg.steps + 1):
        x, y = batch_for(cfg, step, rank, world)
        loss = F.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %d loss %.4f", step, mean.item() / world)
        if step in cfg.save_at:
            writer.save(step, opt.state())
    if rank == 0:
        torch.save(model.state_dict(), Path(box[0]) / "model.pt")
        log.info("files: %s", sorted(p.name for p in Path(box[0]).iterdir()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
