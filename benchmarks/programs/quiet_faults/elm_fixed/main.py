"""Denoiser trained in several job segments, as on a queue with a time limit."""
import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from averaging import WeightAverage


@dataclass
class JobConfig:
    epochs: int = 6
    segments: int = 2
    batch_size: int = 32
    lr: float = 2e-3
    seed: int = 17
    samples: int = 1024
    dim: int = 24


class Denoiser(nn.Module):
    def __init__(self, dim, width=96):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, width))
        self.inp = nn.Linear(dim, width)
        self.mid = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()) for _ in range(3))
        self.out = nn.Linear(width, dim)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        for block in self.mid:
            h = h + block(h)
        return self.out(h)


def make_data(n, dim, seed):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(4, dim, generator=torch.Generator().manual_seed(0))
    return TensorDataset(torch.randn(n, 4, generator=g) @ basis * 0.5)


class Segment:
    def __init__(self, cfg, folder):
        self.cfg, self.folder = cfg, folder
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.net = Denoiser(cfg.dim)
        self.ddp = DDP(self.net)
        self.ema = WeightAverage(self.net)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg.lr)
        train = make_data(cfg.samples, cfg.dim, 1)
        self.sampler = DistributedSampler(train, shuffle=True, seed=cfg.seed, drop_last=True)
        self.loader = DataLoader(train, batch_size=cfg.batch_size, sampler=self.sampler)
        self.val = make_data(256, cfg.dim, 2).tensors[0]
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.epochs * len(self.loader))
        self.noise = torch.Generator().manual_seed(cfg.seed * 100 + self.rank)
        self.epoch = 0
        self.load()

    @property
    def path(self):
        return os.path.join(self.folder, "last.pt")

    def load(self):
        if not os.path.exists(self.path):
            return
        state = torch.load(self.path, weights_only=True)
        self.net.load_state_dict(state["model"])
        self.opt.load_state_dict(state["optimizer"])
        self.sched.load_state_dict(state["scheduler"])
        self.ema.load_state_dict(state["ema"])
        self.noise.set_state(state["noise"][self.rank])
        self.epoch = state["epoch"]
        if self.rank == 0:
            print(f"continuing at epoch {self.epoch}", flush=True)

    def save(self):
        gathered = [None] * self.world
        dist.all_gather_object(gathered, self.noise.get_state())
        if self.rank == 0:
            torch.save(
                {"model": self.net.state_dict(), "optimizer": self.opt.state_dict(),
                 "scheduler": self.sched.state_dict(), "ema": self.ema.state_dict(),
                 "noise": gathered, "epoch": self.epoch},
                self.path,
            )
        dist.barrier()

    def corrupt(self, x, generator):
        t = torch.rand(len(x), 1, generator=generator)
        eps = torch.randn(x.shape, generator=generator)
        return (1 - t).sqrt() * x + t.sqrt() * eps, t, eps

    def run_epoch(self):
        self.sampler.set_epoch(self.epoch)
        total = torch.zeros(2)
        for (x,) in self.loader:
            noisy, t, eps = self.corrupt(x, self.noise)
            loss = (self.ddp(noisy, t) - eps).pow(2).mean()
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.ema.update(self.net)
            total += torch.tensor([loss.item(), 1.0])
        self.epoch += 1
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    @torch.no_grad()
    def score(self, model):
        g = torch.Generator().manual_seed(5)
        noisy, t, eps = self.corrupt(self.val, g)
        mine = slice(self.rank, None, self.world)
        err = (model(noisy[mine], t[mine]) - eps[mine]).pow(2).mean(1)
        acc = torch.tensor([err.sum().item(), float(len(err))])
        dist.all_reduce(acc)
        return (acc[0] / acc[1]).item()

    def run(self, until):
        while self.epoch < until:
            loss = self.run_epoch()
            raw, avg = self.score(self.net), self.score(self.ema.shadow)
            if self.rank == 0:
                print(f"epoch {self.epoch} train {loss:.4f} val {raw:.4f} val(avg) {avg:.4f}", flush=True)
            self.save()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--segments", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    cfg = JobConfig(segments=args.segments)
    box = [tempfile.mkdtemp(prefix="job_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    for part in range(cfg.segments):
        job = Segment(cfg, box[0])
        job.run(until=cfg.epochs * (part + 1) // cfg.segments)
    norms = [sum(p.double().sum() for p in m.parameters()).item() for m in (job.net, job.ema.shadow)]
    if dist.get_rank() == 0:
        print("checksum model %.10f avg %.10f" % tuple(norms), flush=True)
        shutil.rmtree(box[0], ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
