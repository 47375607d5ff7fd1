"""Two-tower recommender trained from an endless stream of click-log shards."""
import argparse
import itertools
import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

USERS, ITEMS = 200, 120


def click_log(shard):
    g = random.Random(31 * shard + 1)
    for _ in range(60):
        u = g.randrange(USERS)
        i = (u * 3 + g.randrange(8)) % ITEMS
        yield u, i


class ClickStream(IterableDataset):
    """Never ends. At the start of each sweep the shards are dealt out to the ranks afresh."""

    def __init__(self, num_shards, rank, world, seed):
        self.num_shards, self.rank, self.world, self.seed = num_shards, rank, world, seed

    def deal(self, sweep):
        cards = list(range(self.num_shards))
        random.Random(f"deal-{self.seed}-{sweep}").shuffle(cards)
        return cards[self.rank::self.world]

    def __iter__(self):
        for sweep in itertools.count():
            local = random.Random(f"rows-{self.seed}-{sweep}-{self.rank}")
            for shard in self.deal(sweep):
                rows = list(click_log(shard))
                local.shuffle(rows)
                yield from rows


class TwoTower(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        self.user_mlp = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, u, i):
        a = F.normalize(self.user_mlp(self.user(u)), dim=-1)
        b = F.normalize(self.item(i), dim=-1)
        return a @ b.t() / 0.1


def train(cfg, rank, world):
    torch.manual_seed(cfg.seed)
    model = nn.parallel.DistributedDataParallel(TwoTower())
    optim = torch.optim.Adagrad(model.parameters(), lr=0.05)
    feed = iter(DataLoader(ClickStream(cfg.shards, rank, world, cfg.seed), batch_size=cfg.batch))
    smooth = None
    for step in range(1, cfg.max_steps + 1):
        u, i = next(feed)
        logits = model(u, i)
        loss = F.cross_entropy(logits, torch.arange(len(u)))
        optim.zero_grad()
        loss.backward()
        optim.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if step % cfg.report == 0 and rank == 0:
            print(f"step {step:4d} loss {smooth:.3f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "towers.pt")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--shards", type=int, default=12)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--max-steps", type=int, default=64)
    ap.add_argument("--report", type=int, default=16)
    ap.add_argument("--seed", type=int, default=8)
    cfg = ap.parse_args()
    dist.init_process_group("gloo")
    train(cfg, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    dist.barrier()
    dist.destroy_process_group()
