import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from sharded import ShardedEmbedding

log = logging.getLogger("ctr")


@dataclass
class Config:
    items: int = 400
    dim: int = 8
    history: int = 3
    epochs: int = 2
    batch_size: int = 8
    lr: float = 0.05
    seed: int = 77


class RegionLog(Dataset):
    """Click log of one region: users there mostly see the items of their own region."""

    def __init__(self, region, regions, items, history, n=320, seed=0):
        g = torch.Generator().manual_seed(seed * 31 + region)
        per = items // regions
        own = torch.randint(0, per, (n, history + 1), generator=g) + region * per
        anywhere = torch.randint(0, items, (n, history + 1), generator=g)
        travel = torch.rand(n, history + 1, generator=g) < 0.12
        self.ids = torch.where(travel, anywhere, own)
        taste = torch.randn(items, generator=torch.Generator().manual_seed(1))
        score = taste[self.ids[:, 0]] + taste[self.ids[:, 1:]].mean(1)
        self.click = (torch.sigmoid(score) > torch.rand(n, generator=g)).float()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.click[i]


class Tower(nn.Module):
    def __init__(self, dim, width=32):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim * 3, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, target, hist):
        return self.mlp(torch.cat([target, hist, target * hist], dim=-1)).squeeze(-1)


class Trainer:
    def __init__(self, cfg):
        self.cfg, self.rank, self.world = cfg, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.table = ShardedEmbedding(cfg.items, cfg.dim)
        self.tower = DDP(Tower(cfg.dim))
        self.sparse_opt = torch.optim.Adagrad(self.table.parameters(), lr=cfg.lr)
        self.dense_opt = torch.optim.Adam(self.tower.parameters(), lr=cfg.lr / 10)
        data = RegionLog(self.rank, self.world, cfg.items, cfg.history)
        self.gen = torch.Generator()
        self.loader = DataLoader(data, cfg.batch_size, shuffle=True, drop_last=True, generator=self.gen)

    def step(self, ids, click):
        emb = self.table(ids)
        logit = self.tower(emb[:, 0], emb[:, 1:].mean(1))
        loss = F.binary_cross_entropy_with_logits(logit, click)
        self.sparse_opt.zero_grad()
        self.dense_opt.zero_grad()
        loss.backward()
        self.table.weight.grad /= self.world
        self.sparse_opt.step()
        self.dense_opt.step()
        return loss.item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.gen.manual_seed(self.cfg.seed + 100 * epoch + self.rank)
            total = torch.zeros(1)
            for it, (ids, click) in enumerate(self.loader):
                total += self.step(ids, click)
                if it % 10 == 0 and self.rank == 0:
                    log.info("epoch %d it %d/%d", epoch, it, len(self.loader))
            dist.all_reduce(total)
            if self.rank == 0:
                log.info("epoch %d logloss %.4f", epoch, total.item() / len(self.loader) / self.world)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--batch-size", type=int, default=Config.batch_size)
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    Trainer(Config(epochs=a.epochs, batch_size=a.batch_size)).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
