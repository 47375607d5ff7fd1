"""Sequence labelling with a GRU; evaluated every N optimizer steps on all workers."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger(__name__)


@dataclass
class Plan:
    epochs: int = 3
    batch: int = 16
    accumulate: int = 2
    eval_every: int = 8
    lr: float = 4e-3
    seed: int = 31


class Labeller(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(60, 24)
        self.drop = nn.Dropout(0.25)
        self.rnn = nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(48, 3)

    def forward(self, x):
        h, _ = self.rnn(self.drop(self.emb(x)))
        return self.out(self.drop(h))


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 60, (n, 10), generator=g)
    y = (x + torch.cat([torch.zeros(n, 1, dtype=torch.long), x[:, :-1]], 1)) // 40
    return TensorDataset(x, y.clamp_max(2))


class Runner:
    def __init__(self, plan):
        self.plan, self.rank, self.world = plan, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(plan.seed)
        self.model = DDP(Labeller())
        torch.manual_seed(plan.seed + 1 + self.rank)
        self.train_set, held = corpus(1024, 3), corpus(150, 4)
        self.sampler = DistributedSampler(self.train_set, seed=plan.seed, drop_last=True)
        self.loader = DataLoader(self.train_set, plan.batch, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(Subset(held, range(self.rank, len(held), self.world)), 32)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=plan.lr)
        self.step, self.best = 0, float("inf")

    def evaluate(self):
        net = self.model.module
        before = self.model.training
        self.model.eval()
        try:
            sums = torch.zeros(3)
            with torch.no_grad():
                for x, y in self.val_loader:
                    out = net(x)
                    sums[0] += F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")
                    sums[1] += (out.argmax(-1) == y).sum()
                    sums[2] += y.numel()
            dist.all_reduce(sums)
            return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()
        finally:
            self.model.train(before)

    def save(self, loss):
        if loss < self.best:
            self.best = loss
            if self.rank == 0:
                os.makedirs("out_erie", exist_ok=True)
                torch.save(self.model.module.state_dict(), "out_erie/best.pt")

    def optimise(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.step += 1
        if self.step % self.plan.eval_every == 0:
            loss, acc = self.evaluate()
            log.info("step %d val %.4f acc %.3f", self.step, loss, acc)
            self.save(loss)

    def fit(self):
        self.model.train()
        for epoch in range(self.plan.epochs):
            self.sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(self.loader, 1):
                last = i % self.plan.accumulate == 0
                self.model.require_backward_grad_sync = last
                loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten()) / self.plan.accumulate
                loss.backward()
                if last:
                    self.optimise()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Plan.epochs)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    runner = Runner(Plan(epochs=a.epochs))
    runner.fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
