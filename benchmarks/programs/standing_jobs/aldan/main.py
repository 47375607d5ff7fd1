import argparse
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from cache import FeatureCache

log = logging.getLogger("ridge")


@dataclass
class Config:
    n: int = 1200
    raw: int = 10
    dim: int = 200
    batch: int = 40
    epochs: int = 4
    lr: float = 0.3
    decay: float = 1e-4
    seed: int = 19


def raw_data(cfg):
    rng = np.random.default_rng(cfg.seed)
    x = rng.normal(size=(cfg.n, cfg.raw))
    y = np.sin(x[:, 0]) * x[:, 1] + 0.5 * np.cos(2 * x[:, 2]) + 0.05 * rng.normal(size=cfg.n)
    cut = int(cfg.n * 0.8)
    return {"train": (x[:cut], y[:cut]), "val": (x[cut:], y[cut:])}


class Features(Dataset):
    def __init__(self, feats, y):
        self.feats, self.y = feats, y.astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.from_numpy(np.array(self.feats[i])), self.y[i]


class Readout(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin = nn.Linear(dim, 1)
        nn.init.zeros_(self.lin.weight)

    def forward(self, f):
        return self.lin(f).squeeze(-1)


@torch.no_grad()
def evaluate(model, loader):
    acc = torch.zeros(2, dtype=torch.float64)
    for f, y in loader:
        acc += torch.tensor([((model(f) - y) ** 2).sum().item(), len(y)], dtype=torch.float64)
    dist.all_reduce(acc)
    return (acc[0] / acc[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--dim", type=int, default=200)
    ap.add_argument("--cache-root", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"r{rank} %(name)s %(message)s")
    cfg = Config(epochs=args.epochs, dim=args.dim)

    box = [args.cache_root or (tempfile.mkdtemp(prefix="feats_") if rank == 0 else None)]
    dist.broadcast_object_list(box, src=0)
    cache = FeatureCache(Path(box[0]), sync=dist.barrier)
    sets = {}
    for split, (x, y) in raw_data(cfg).items():
        sets[split] = Features(cache.get(split, x, cfg.dim, cfg.seed), y)

    torch.manual_seed(cfg.seed)
    model = DDP(Readout(cfg.dim))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, weight_decay=cfg.decay, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5)
    sampler = DistributedSampler(sets["train"], seed=cfg.seed)
    loader = DataLoader(sets["train"], cfg.batch, sampler=sampler)
    val = torch.utils.data.Subset(sets["val"], range(rank, len(sets["val"]), world))
    val_loader = DataLoader(val, 64)

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        for f, y in loader:
            loss = nn.functional.mse_loss(model(f), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        mse = evaluate(model.module, val_loader)
        if rank == 0:
            log.info("epoch %d val mse %.4f", epoch, mse)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
