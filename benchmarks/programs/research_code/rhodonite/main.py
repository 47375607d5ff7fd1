"""Teacher-student distillation without a DDP wrapper: own bucketed gradient exchange, loss scaling, clipping."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from exchange import GradientExchange, broadcast_module, scaler_step

log = logging.getLogger("kd")


@dataclass
class KDConfig:
    epochs: int = 3
    batch: int = 30
    temperature: float = 3.0
    alpha: float = 0.7
    feature_weight: float = 0.5
    lr: float = 4e-3
    clip: float = 1.0
    init_scale: float = 1024.0
    seed: int = 40


class MLP(nn.Module):
    def __init__(self, d, width, classes, depth):
        super().__init__()
        self.inp = nn.Linear(d, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for m in self.mid:
            h = F.relu(m(h)) + h
        return self.out(h), h


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    c = torch.randn(24, 20, generator=torch.Generator().manual_seed(4))
    k = torch.randint(0, 24, (n,), generator=g)
    return TensorDataset(c[k] + 0.8 * torch.randn(n, 20, generator=g), k % 6)


class Distiller(nn.Module):
    """Student, feature adapter and a frozen teacher under one roof."""

    def __init__(self, teacher, cfg):
        super().__init__()
        self.student = MLP(20, 32, 6, 1)
        self.adapter = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64))
        self.teacher = teacher.eval().requires_grad_(False)
        self.cfg = cfg

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x, y):
        s, f = self.student(x)
        with torch.no_grad():
            t, tf = self.teacher(x)
        T = self.cfg.temperature
        kd = F.kl_div(F.log_softmax(s / T, -1), F.softmax(t / T, -1), reduction="batchmean") * T * T
        feat = F.mse_loss(self.adapter(f), F.layer_norm(tf, tf.shape[-1:]))
        return (1 - self.cfg.alpha) * F.cross_entropy(s, y) + self.cfg.alpha * kd + self.cfg.feature_weight * feat


def train_teacher(train, cfg):
    """Every rank trains the same teacher on the same data with the same seed; rank 0's is then sent around."""
    torch.manual_seed(cfg.seed)
    t = MLP(20, 64, 6, 2)
    opt = torch.optim.AdamW(t.parameters(), lr=3e-3)
    x, y = train.tensors
    for _ in range(2):
        for j in torch.randperm(len(x)).split(60):
            loss = F.cross_entropy(t(x[j])[0], y[j])
            opt.zero_grad()
            loss.backward()
            opt.step()
    broadcast_module(t)
    return t


@torch.no_grad()
def accuracy(net, ds):
    x, y = (t[dist.get_rank()::dist.get_world_size()] for t in ds.tensors)
    t = torch.tensor([(net(x)[0].argmax(1) == y).sum(), len(y)], dtype=torch.float64)
    dist.all_reduce(t)
    return (t[0] / t[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--out", default="kd_out")
    a = ap.parse_args()
    cfg = KDConfig(epochs=a.epochs)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    train, test = data(1200, 1), data(400, 2)
    teacher = train_teacher(train, cfg)
    log.info("teacher acc %.3f", accuracy(teacher, test))
    torch.manual_seed(cfg.seed + 1 + rank)
    model = Distiller(teacher, cfg)
    broadcast_module(model)
    params = [p for p in model.parameters() if p.requires_grad]
    exchange = GradientExchange(params, bucket_elems=3000)
    opt = torch.optim.AdamW(params, lr=cfg.lr, weight_decay=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=cfg.init_scale, growth_interval=25)
    sampler = DistributedSampler(train, seed=cfg.seed)
    loader = DataLoader(train, cfg.batch, sampler=sampler)
    total = cfg.epochs * len(loader)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        model.train()
        s = torch.zeros(2)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x, y)
            scaler.scale(loss).backward()
            exchange.run()
            norm, stepped = scaler_step(scaler, opt, params, cfg.clip)
            if stepped:
                sched.step()
            s += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(s)
        model.eval()
        log.info("epoch %d loss %.4f student acc %.3f scale %g |g| %.3f", epoch, s[0] / s[1], accuracy(model.student, test), scaler.get_scale(), norm)
    if rank == 0:
        os.makedirs(a.out, exist_ok=True)
        torch.save({"student": model.student.state_dict(), "scaler": scaler.state_dict()}, os.path.join(a.out, "student.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
