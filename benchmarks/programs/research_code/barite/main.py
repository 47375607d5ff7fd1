"""Requeued job with ZeroRedundancyOptimizer: each leg restores model, optimizer, schedule and data position."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("zero")


@dataclass
class Opts:
    epochs: int = 4
    epochs_per_leg: int = 2
    batch: int = 20
    lr: float = 2e-3
    warmup: int = 10
    seed: int = 71
    path: str = "zero_job/ckpt.pt"


def sequences(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 16, (n, 12), generator=g)
    w = torch.randn(16, 12, generator=torch.Generator().manual_seed(1))
    score = w[x, torch.arange(12)].sum(1)
    return TensorDataset(x, (score > 0).long() + (score > 3).long())


class Mixer(nn.Module):
    def __init__(self, d=32, t=12, depth=3, classes=3):
        super().__init__()
        self.emb = nn.Embedding(16, d)
        self.tok = nn.ModuleList(nn.Sequential(nn.Linear(t, 2 * t), nn.GELU(), nn.Linear(2 * t, t)) for _ in range(depth))
        self.ch = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        h = self.emb(x)
        for t, c, n in zip(self.tok, self.ch, self.norm):
            h = h + t(n(h).transpose(1, 2)).transpose(1, 2)
            h = h + c(h)
        return self.head(h.mean(1))


class Leg:
    def __init__(self, o):
        self.o = o
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(o.seed)
        train, self.test = sequences(640, 2), sequences(250, 3)
        self.sampler = DistributedSampler(train, seed=o.seed)
        self.loader = DataLoader(train, o.batch, sampler=self.sampler)
        self.model = DDP(Mixer())
        self.opt = ZeroRedundancyOptimizer(self.model.parameters(), optimizer_class=torch.optim.AdamW, lr=o.lr, weight_decay=0.01)
        self.epoch, self.step = 0, 0

    def lr_at(self, step):
        total = self.o.epochs * len(self.loader)
        if step < self.o.warmup:
            return self.o.lr * (step + 1) / self.o.warmup
        return self.o.lr * max(0.02, 1 - (step - self.o.warmup) / (total - self.o.warmup))

    def save(self):
        self.opt.consolidate_state_dict(to=0)
        if self.rank == 0:
            os.makedirs(os.path.dirname(self.o.path), exist_ok=True)
            tmp = self.o.path + ".part"
            torch.save({"model": self.model.module.state_dict(), "optim": self.opt.state_dict(), "epoch": self.epoch,
                        "step": self.step}, tmp)
            os.replace(tmp, self.o.path)
        dist.barrier()

    def resume(self):
        if not os.path.isfile(self.o.path):
            return
        ckpt = torch.load(self.o.path, map_location="cpu", weights_only=False)
        self.model.module.load_state_dict(ckpt["model"])
        self.epoch, self.step = ckpt["epoch"], ckpt["step"]
        if self.rank == 0:
            self.opt.load_state_dict(ckpt["optim"])
            log.info("restored epoch %d step %d, %d optimizer entries", self.epoch, self.step, len(ckpt["optim"]["state"]))
        dist.barrier()

    def train_epoch(self):
        self.model.train()
        self.sampler.set_epoch(self.epoch)
        s = torch.zeros(2)
        for x, y in self.loader:
            for g in self.opt.param_groups:
                g["lr"] = self.lr_at(self.step)
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.step += 1
            s += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(s)
        return (s[0] / s[1]).item()

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        x, y = (t[self.rank::self.world] for t in self.test.tensors)
        t = torch.tensor([(self.model.module(x).argmax(1) == y).sum(), len(y)], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1]).item()

    def run(self):
        self.resume()
        last = min(self.o.epochs, self.epoch + self.o.epochs_per_leg)
        while self.epoch < last:
            loss = self.train_epoch()
            self.epoch += 1
            log.info("epoch %d loss %.5f acc %.3f", self.epoch, loss, self.accuracy())
        self.save()
        return self.epoch >= self.o.epochs


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Opts.epochs)
    p.add_argument("--epochs-per-leg", type=int, default=Opts.epochs_per_leg)
    a = p.parse_args()
    o = Opts(epochs=a.epochs, epochs_per_leg=a.epochs_per_leg)
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    if dist.get_rank() == 0 and os.path.exists(o.path):
        os.remove(o.path)
    dist.barrier()
    finished = False
    while not finished:
        finished = Leg(o).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
