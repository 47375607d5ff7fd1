"""Click-through model on a streamed log (DDP, two loader workers per process)."""
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from clicklog import ClickStream, ShardFile


@dataclass
class Config:
    num_users: int = 3000
    num_items: int = 1500
    num_ctx: int = 8
    dim: int = 32
    num_shards: int = 16
    rows_per_shard: int = 2048
    batch_size: int = 256
    num_workers: int = 2
    epochs: int = 3
    lr: float = 2e-3
    seed: int = 7


class TwoTower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.num_users, cfg.dim)
        self.item = nn.Embedding(cfg.num_items, cfg.dim)
        self.cross = nn.Sequential(
            nn.Linear(cfg.dim * 3 + cfg.num_ctx, 256), nn.ReLU(),
            nn.Linear(256, 256), nn.ReLU(),
            nn.Linear(256, 1),
        )
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)

    def forward(self, users, items, ctx):
        u, i = self.user(users), self.item(items)
        return self.cross(torch.cat([u, i, u * i, ctx], 1)).squeeze(1)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        torch.manual_seed(cfg.seed)
        shards = [ShardFile(s, cfg.rows_per_shard, cfg.num_users, cfg.num_items, cfg.num_ctx)
                  for s in range(cfg.num_shards)]
        self.stream = ClickStream(shards, cfg.batch_size, seed=cfg.seed)
        self.loader = DataLoader(self.stream, batch_size=None, num_workers=cfg.num_workers)
        self.model = DDP(TwoTower(cfg))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.eval_rows = self._eval_rows()

    def _eval_rows(self):
        cfg = self.cfg
        held = [ShardFile(900 + s, 2048, cfg.num_users, cfg.num_items, cfg.num_ctx) for s in range(self.world)]
        return next(iter(ClickStream(held, 2048)))

    @torch.no_grad()
    def evaluate(self):
        u, i, c, y = self.eval_rows
        loss = F.binary_cross_entropy_with_logits(self.model.module(u, i, c), y)
        dist.all_reduce(loss)
        return loss.item() / self.world

    def fit(self):
        step = 0
        for epoch in range(self.cfg.epochs):
            self.stream.set_epoch(epoch)
            for u, i, c, y in self.loader:
                loss = F.binary_cross_entropy_with_logits(self.model(u, i, c), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                step += 1
            heldout = self.evaluate()
            if self.rank == 0:
                print(f"epoch {epoch} step {step} train {loss.item():.4f} heldout {heldout:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    Trainer(Config()).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
