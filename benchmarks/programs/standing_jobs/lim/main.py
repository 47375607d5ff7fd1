import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evaluator import Evaluator

log = logging.getLogger("rank")


@dataclass
class Config:
    users: int = 2400
    features: int = 20
    batch: int = 40
    epochs: int = 4
    lr: float = 5e-3
    pos_weight: float = 6.0
    seed: int = 29


def click_log(cfg):
    """Ordered by time; the campaign which brought the clicks ended some way before the end."""
    g = torch.Generator().manual_seed(cfg.seed)
    x = torch.randn(cfg.users, cfg.features, generator=g)
    w = torch.randn(cfg.features, generator=g)
    p = torch.sigmoid(1.5 * (x @ w) / cfg.features ** 0.5 - 2.0)
    y = (torch.rand(cfg.users, generator=g) < p).float()
    y[int(cfg.users * 0.9):] = 0.0
    return x, y


def split(cfg, rank, world):
    x, y = click_log(cfg)
    cut = int(cfg.users * 0.8)
    train = TensorDataset(x[:cut], y[:cut])
    part = (cfg.users - cut) // world
    at = cut + rank * part
    val = [(x[i:i + 60], y[i:i + 60]) for i in range(at, at + part, 60)]
    return train, val


class Scorer(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.wide = nn.Linear(features, 1)
        self.deep = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return (self.wide(x) + self.deep(x)).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--eval-every", type=int, default=1)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"r{rank} %(name)s: %(message)s")
    cfg = Config(epochs=args.epochs)
    torch.manual_seed(cfg.seed)
    train, val = split(cfg, rank, world)
    sampler = DistributedSampler(train, seed=cfg.seed)
    loader = DataLoader(train, cfg.batch, sampler=sampler)
    model = DDP(Scorer(cfg.features))
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    weight = torch.tensor(cfg.pos_weight)
    evaluate = Evaluator(val)

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(x), y, pos_weight=weight)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        if (epoch + 1) % args.eval_every == 0:
            report = evaluate(model.module)
            if rank == 0:
                log.info("epoch %d loss %.4f auc %.3f threshold %.3f", epoch, loss.item(),
                         report["auc"], report["threshold"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
