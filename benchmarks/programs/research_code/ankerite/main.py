"""Keyword spotting on synthetic spectrograms with plateau schedule, early stopping and SpecAugment-like masks."""
import argparse
import logging
import os
import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("kws")


@dataclass
class HP:
    epochs: int = 8
    batch: int = 16
    lr: float = 8e-3
    factor: float = 0.5
    patience: int = 0
    min_lr: float = 1e-5
    stop_after: int = 6
    label_noise: float = 0.15
    seed: int = 29
    out: str = "kws_out"


class Words(Dataset):
    classes = 6

    def __init__(self, n, seed, noise, augment):
        g = torch.Generator().manual_seed(seed)
        proto = torch.randn(self.classes, 12, 20, generator=torch.Generator().manual_seed(8))
        self.y = torch.randint(0, self.classes, (n,), generator=g)
        shift = torch.randint(-3, 4, (n,), generator=g).tolist()
        self.x = torch.stack([proto[c].roll(s, -1) for c, s in zip(self.y.tolist(), shift)]) + 1.3 * torch.randn(n, 12, 20, generator=g)
        flip = torch.rand(n, generator=g) < noise
        self.y = torch.where(flip, torch.randint(0, self.classes, (n,), generator=g), self.y)
        self.augment = augment

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i].clone()
        if self.augment:
            f, t = int(torch.randint(0, 10, (1,))), int(torch.randint(0, 17, (1,)))
            x[f:f + 2] = 0
            x[:, t:t + 3] = 0
        return x, self.y[i]


class DSConv(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(c, c, 3, padding=1, groups=c), nn.Conv1d(c, c, 1), nn.GroupNorm(4, c), nn.ReLU())

    def forward(self, x):
        return x + self.net(x)


class KWS(nn.Module):
    def __init__(self, classes, c=32):
        super().__init__()
        self.stem = nn.Conv1d(12, c, 3, padding=1)
        self.body = nn.Sequential(DSConv(c), DSConv(c), DSConv(c))
        self.head = nn.Linear(2 * c, classes)

    def forward(self, x):
        h = self.body(F.relu(self.stem(x)))
        return self.head(torch.cat([h.mean(-1), h.amax(-1)], 1))


class EarlyStop:
    def __init__(self, limit):
        self.limit, self.best, self.bad = limit, float("inf"), 0

    def update(self, v):
        self.bad = 0 if v < self.best else self.bad + 1
        self.best = min(self.best, v)
        return self.bad >= self.limit


class Experiment:
    def __init__(self, hp):
        self.hp = hp
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(hp.seed + self.rank)
        train, val = Words(384, 1, hp.label_noise, True), Words(96, 2, hp.label_noise, False)
        self.sampler = DistributedSampler(train, seed=hp.seed)
        self.train_loader = DataLoader(train, hp.batch, sampler=self.sampler)
        self.val_loader = DataLoader(val, 32, sampler=DistributedSampler(val, shuffle=False))
        self.model = DDP(KWS(Words.classes))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=hp.lr)
        self.sched = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, factor=hp.factor, patience=hp.patience, min_lr=hp.min_lr)
        self.stop = EarlyStop(hp.stop_after)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        s = torch.zeros(2)
        for x, y in self.train_loader:
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
            self.opt.step()
            s += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(s)
        return (s[0] / s[1]).item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        loss, hit, n = 0.0, 0, 0
        for x, y in self.val_loader:
            z = self.model.module(x)
            loss += F.cross_entropy(z, y, reduction="sum").item()
            hit += (z.argmax(1) == y).sum().item()
            n += len(y)
        t = torch.tensor([loss, hit, n], dtype=torch.float64)
        dist.all_reduce(t)
        return {"loss": loss / n, "mean_loss": (t[0] / t[2]).item(), "acc": (t[1] / t[2]).item()}

    def save(self, epoch, val):
        if self.rank == 0:
            os.makedirs(self.hp.out, exist_ok=True)
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(), "sched": self.sched.state_dict(),
                        "epoch": epoch, "val": val, "hp": asdict(self.hp)}, os.path.join(self.hp.out, "best.pt"))

    def run(self):
        for epoch in range(self.hp.epochs):
            t0 = time.time()
            loss = self.train_epoch(epoch)
            val = self.validate()
            self.sched.step(val["mean_loss"])
            log.info("epoch %d train %.4f val %.4f acc %.3f lr %.1e %.1fs", epoch, loss, val["mean_loss"], val["acc"],
                     self.opt.param_groups[0]["lr"], time.time() - t0)
            if val["mean_loss"] < self.stop.best:
                self.save(epoch, val)
            if self.stop.update(val["mean_loss"]):
                log.info("stopped early")
                break
        dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=HP.epochs)
    ap.add_argument("--lr", type=float, default=HP.lr)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    Experiment(HP(epochs=a.epochs, lr=a.lr)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
