import argparse
import logging
import shutil
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tables import Table

log = logging.getLogger("fit")


@dataclass
class Config:
    keys: int = 600
    cols: int = 24
    n: int = 1800
    batch: int = 30
    epochs: int = 3
    micro: int = 2
    lr: float = 5e-3
    seed: int = 181


class Queries(Dataset):
    """A key, its table row and a noisy property of it."""

    def __init__(self, table, cfg):
        rng = np.random.default_rng(cfg.seed)
        self.table = table
        self.keys = rng.integers(0, cfg.keys, size=cfg.n)
        w = rng.normal(size=cfg.cols).astype(np.float32)
        clean = np.tanh(np.asarray(table)[self.keys] @ w)
        self.y = (clean + 0.05 * rng.normal(size=cfg.n)).astype(np.float32)

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        return torch.from_numpy(np.array(self.table[self.keys[i]])), self.y[i]


class Regressor(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cols, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Fit:
    def __init__(self, cfg, table):
        self.cfg = cfg
        self.world = dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = Regressor(cfg.cols)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        data = Queries(table, cfg)
        self.sampler = DistributedSampler(data, seed=cfg.seed)
        self.loader = DataLoader(data, cfg.batch, sampler=self.sampler)

    def update(self, x, y):
        """Micro-batches add up locally, gradients are averaged once."""
        self.opt.zero_grad()
        total = 0.0
        for xs, ys in zip(x.chunk(self.cfg.micro), y.chunk(self.cfg.micro)):
            loss = F.mse_loss(self.model(xs), ys, reduction="sum") / len(x)
            loss.backward()
            total += loss.item()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return total

    def epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        tally = torch.zeros(2)
        for x, y in self.loader:
            tally += torch.tensor([self.update(x, y) * len(x), len(x)])
        dist.all_reduce(tally)
        return (tally[0] / tally[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--root", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(name)s %(message)s")
    cfg = Config(epochs=args.epochs)
    box = [args.root or (tempfile.mkdtemp(prefix="tables_") if rank == 0 else None)]
    dist.broadcast_object_list(box, src=0)
    table = Table(box[0], "cosines", cfg.keys, cfg.cols).open()
    fit = Fit(cfg, table)
    for epoch in range(cfg.epochs):
        loss = fit.epoch(epoch)
        if rank == 0:
            log.info("epoch %d loss %.5f", epoch, loss)
    flat = nn.utils.parameters_to_vector(fit.model.parameters()).detach()
    first = flat.clone()
    dist.broadcast(first, src=0)
    log.info("difference to rank 0: %.1e", (flat - first).abs().max().item())
    dist.barrier()
    if rank == 0 and args.root is None:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
