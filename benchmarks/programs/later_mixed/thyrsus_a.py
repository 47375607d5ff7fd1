"""Sharded-optimizer trainer: every rank keeps and stores its own part of the Adam state."""
import argparse
import datetime as dt
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    name: str = "scorer"
    steps: int = 24
    save_every: int = 8
    lr: float = 2e-3
    base: str = ""
    output_dir: str = field(default="")

    def validate(self):
        if not self.output_dir:
            now = dt.datetime.now()
            self.output_dir = os.path.join(self.base, f"{now:%Y-%m-%d}", f"{now:%H-%M-%S}_{self.name}")


class Sharded:
    """Each tensor has an owner rank that keeps its Adam state and broadcasts the new value."""

    def __init__(self, model, lr):
        self.model = model
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.params = list(model.parameters())
        mine = [p for i, p in enumerate(self.params) if i % self.world == self.rank]
        self.opt = torch.optim.Adam(mine, lr=lr)

    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= self.world
        self.opt.step()
        for i, p in enumerate(self.params):
            dist.broadcast(p.data, src=i % self.world)
            p.grad = None


def save(cfg, sharded, step):
    folder = os.path.join(cfg.output_dir, f"step{step:03d}")
    os.makedirs(folder, exist_ok=True)
    if sharded.rank == 0:
        torch.save(sharded.model.state_dict(), os.path.join(folder, "model.pt"))
    torch.save(sharded.opt.state_dict(), os.path.join(folder, f"optim_rank{sharded.rank}.pt"))
    dist.barrier()


def warm_up(rank):
    """Builds the tokenizer tables; takes a little longer on the first rank."""
    time.sleep(0.2 if rank else 1.3)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=24)
    args = ap.parse_args()
    base = os.path.join(tempfile.gettempdir(), f"runs_{os.environ.get('TORCHELASTIC_RUN_ID', '0')}_{os.getppid()}")
    cfg = Config(steps=args.steps, base=base)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    warm_up(rank)
    cfg.validate()
    box = [cfg.output_dir]
    dist.broadcast_object_list(box, src=0)
    cfg.output_dir = box[0]

    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(14, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2))
    sharded = Sharded(model, cfg.lr)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, cfg.steps + 1):
        x = torch.randn(32, 14, generator=gen)
        loss = F.cross_entropy(model(x), (x.sum(1) > 0).long())
        loss.backward()
        sharded.step()
        if step % cfg.save_every == 0:
            save(cfg, sharded, step)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} saved to {cfg.output_dir}", flush=True)
    dist.barrier()
    if rank == 0 and not os.environ.get("KEEP_RUNS"):
        shutil.rmtree(base)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
