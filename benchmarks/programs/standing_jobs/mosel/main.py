import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from replica import ReplicaKeeper
from topology import Topology

log = logging.getLogger("train")


@dataclass
class Config:
    n: int = 2160
    features: int = 20
    batch: int = 24
    epochs: int = 3
    lr: float = 0.01
    compare_every: int = 8
    keepers: tuple = (0, 1)
    seed: int = 211


def make(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    x = torch.randn(cfg.n, cfg.features, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] > 0).long()
    return TensorDataset(x, y)


def average(model, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at: at + p.numel()].view_as(p))
        at += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--compare-every", type=int, default=8)
    ap.add_argument("--keepers", default="0,1")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    keepers = tuple(int(r) for r in args.keepers.split(","))
    cfg = Config(epochs=args.epochs, compare_every=args.compare_every, keepers=keepers)
    topo = Topology(cfg.keepers)
    logging.basicConfig(level=logging.INFO if topo.is_main else logging.WARNING,
                        format=f"r{topo.rank} %(name)s %(message)s")
    torch.manual_seed(cfg.seed)
    model = nn.Sequential(nn.Linear(cfg.features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(),
                          nn.Linear(32, 4))
    data = make(cfg)
    sampler = DistributedSampler(data, seed=cfg.seed)
    loader = DataLoader(data, cfg.batch, sampler=sampler)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.02)
    keeper = ReplicaKeeper(topo, model, every=cfg.compare_every)

    step = 0
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        tally = torch.zeros(3)
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            average(model, topo.world)
            opt.step()
            step += 1
            keeper.after_step(step, model, loss.item())
            tally += torch.tensor([loss.item() * len(y), (out.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(tally)
        log.info("epoch %d loss %.4f acc %.3f", epoch, tally[0] / tally[2], tally[1] / tally[2])
    log.info("%d comparisons", keeper.checks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
