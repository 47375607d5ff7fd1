import argparse
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from stopping import Vote

log = logging.getLogger("train")


@dataclass
class Config:
    n: int = 1200
    features: int = 14
    batch: int = 30
    max_epochs: int = 30
    lr: float = 0.02
    patience: int = 2
    report_every: int = 15
    render_seconds: float = 8.5
    seed: int = 151


def domain(cfg, index, n):
    """Validation domains differ in how strongly they are shifted."""
    g = torch.Generator().manual_seed(cfg.seed + 1000 + index)
    x = torch.randn(n, cfg.features, generator=g) + 0.2 * index
    return x, target(cfg, x) + 0.1 * torch.randn(n, 1, generator=g)


def target(cfg, x):
    w = torch.randn(cfg.features, 2, generator=torch.Generator().manual_seed(cfg.seed))
    h = torch.tanh(0.5 * x @ w)
    return h.sum(1, keepdim=True)


class Reporter:
    """Draws residual histograms; rendering is slow and happens on one rank."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.pages = []

    def page(self, epoch, model, x, y):
        with torch.no_grad():
            res = (model(x) - y).flatten()
        hist = torch.histc(res, bins=12, min=-2, max=2).int().tolist()
        time.sleep(self.cfg.render_seconds)
        self.pages.append((epoch, hist))
        log.info("page for epoch %d: %s", epoch, hist)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-epochs", type=int, default=30)
    ap.add_argument("--render-seconds", type=float, default=8.5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"%(asctime)s r{rank} %(message)s")
    cfg = Config(max_epochs=args.max_epochs, render_seconds=args.render_seconds)
    g = torch.Generator().manual_seed(cfg.seed)
    x = torch.randn(cfg.n, cfg.features, generator=g)
    data = TensorDataset(x, target(cfg, x) + 0.1 * torch.randn(cfg.n, 1, generator=g))
    sampler = DistributedSampler(data, seed=cfg.seed)
    loader = DataLoader(data, cfg.batch, sampler=sampler)
    vx, vy = domain(cfg, rank, 300)
    torch.manual_seed(cfg.seed)
    model = DDP(nn.Sequential(nn.Linear(cfg.features, 32), nn.Tanh(), nn.Linear(32, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    vote = Vote(cfg.patience)
    reporter = Reporter(cfg) if rank == 0 else None

    for epoch in range(cfg.max_epochs):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            loss = F.mse_loss(model(xb), yb)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        with torch.no_grad():
            val = F.mse_loss(model.module(vx), vy).item()
        leave = vote(epoch, val)
        if reporter and ((epoch + 1) % cfg.report_every == 0 or leave):
            reporter.page(epoch, model.module, vx, vy)
        if leave:
            break
    dist.barrier()
    log.info("stopped after epoch %d, own domain %.4f", epoch, val)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
