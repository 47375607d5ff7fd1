"""Pool-based active learning: score the pool in parallel, label the most uncertain, retrain."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset

from acquisition import bald_scores, top_k
from pool import Oracle, make_pool

log = logging.getLogger("al")


@dataclass
class ALConfig:
    rounds: int = 4
    initial: int = 60
    per_round: int = 60
    epochs: int = 5
    batch: int = 15
    lr: float = 4e-3
    mc_samples: int = 6
    seed: int = 13


class Net(nn.Module):
    def __init__(self, d, classes, width=64, p=0.25):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Dropout(p), nn.Linear(width, width), nn.ReLU(), nn.Dropout(p))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x))


class ActiveLearner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.pool, self.test = make_pool(2400, seed=cfg.seed), make_pool(600, seed=cfg.seed + 1)
        self.oracle = Oracle(self.pool)
        g = torch.Generator().manual_seed(cfg.seed)
        self.labelled = torch.randperm(len(self.pool), generator=g)[:cfg.initial].tolist()
        self.oracle.query(self.labelled)
        self.global_epoch = 0

    def unlabelled(self):
        taken = set(self.labelled)
        return [i for i in range(len(self.pool)) if i not in taken]

    def select(self, model):
        """Each rank scores a strided part of what is left and proposes its most uncertain samples."""
        mine = self.unlabelled()[self.rank::self.world]
        torch.manual_seed(self.cfg.seed + 1000 * self.rank + self.global_epoch)
        scores = bald_scores(model.module, self.pool, mine, self.cfg.mc_samples)
        n = self.cfg.per_round // self.world
        picks = top_k(mine, scores, n)
        mean = scores.topk(n).values.mean()
        dist.all_reduce(mean)
        log.info("  proposed %d per rank, mean score %.4f", n, mean.item() / self.world)
        return picks

    def extend(self, picks):
        self.oracle.query(picks)
        self.labelled = self.labelled + picks
        count = torch.tensor(float(len(self.labelled)))
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        log.info("  labelled set has %d samples", int(count))

    def train(self, rnd):
        torch.manual_seed(self.cfg.seed + rnd)
        model = DDP(Net(self.pool.dim, self.pool.classes))
        ds = Subset(self.oracle, sorted(self.labelled))
        sampler = DistributedSampler(ds, seed=self.cfg.seed + rnd)
        loader = DataLoader(ds, batch_size=self.cfg.batch, sampler=sampler)
        opt = torch.optim.AdamW(model.parameters(), lr=self.cfg.lr, weight_decay=1e-2)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.cfg.epochs * len(loader))
        torch.manual_seed(self.cfg.seed + rnd + 77 * (self.rank + 1))
        tot = torch.zeros(2)
        for e in range(self.cfg.epochs):
            sampler.set_epoch(e)
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                sched.step()
                tot += torch.tensor([loss.item(), 1.0])
            self.global_epoch += 1
        dist.all_reduce(tot)
        return model, (tot[0] / tot[1]).item()

    @torch.no_grad()
    def accuracy(self, model):
        model.eval()
        idx = torch.arange(self.rank, len(self.test), self.world)
        hit = (model.module(self.test.x[idx]).argmax(1) == self.test.y[idx]).sum()
        cnt = torch.tensor([hit.item(), len(idx)], dtype=torch.float64)
        dist.all_reduce(cnt)
        return (cnt[0] / cnt[1]).item()

    def run(self):
        for rnd in range(self.cfg.rounds):
            model, loss = self.train(rnd)
            log.info("round %d labelled %d loss %.4f acc %.3f", rnd, len(self.labelled), loss, self.accuracy(model))
            if rnd + 1 < self.cfg.rounds:
                self.extend(self.select(model))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--seed", type=int, default=13)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    ActiveLearner(ALConfig(rounds=a.rounds, seed=a.seed)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
