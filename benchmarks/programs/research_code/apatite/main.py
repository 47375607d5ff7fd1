"""Metric learning with in-batch hard triplets, gradient accumulation and mixed precision."""
import argparse
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from pk import IdentitySet, PKBatchSampler
from triplet import batch_hard


def log(*a):
    if dist.get_rank() == 0:
        print(*a, file=sys.stdout, flush=True)


class Embedder(nn.Module):
    def __init__(self, d, out=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.emb = nn.Linear(64, out)
        self.cls = nn.Linear(out, IdentitySet.identities)

    def forward(self, x):
        e = self.emb(self.net(x))
        return nn.functional.normalize(e, dim=-1), self.cls(e)


class Trainer:
    def __init__(self, args):
        self.a = args
        torch.manual_seed(args.seed)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.train, self.gallery = IdentitySet(30, seed=1), IdentitySet(8, seed=2)
        self.batches = PKBatchSampler(self.train.y, p=args.p, k=args.k, rank=self.rank, world=self.world, seed=args.seed)
        self.loader = DataLoader(self.train, batch_sampler=self.batches)
        self.model = DDP(Embedder(IdentitySet.dim))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=1e-2)
        self.updates = 0

    def lr_now(self):
        return self.a.lr * min(1.0, (self.updates + 1) / self.a.warmup)

    def compute(self, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.a.bf16):
            e, logits = self.model(x)
        return batch_hard(e.float(), y, self.a.margin) + 0.5 * nn.functional.cross_entropy(logits.float(), y)

    def step(self):
        for g in self.opt.param_groups:
            g["lr"] = self.lr_now()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.a.clip)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.updates += 1
        return norm.item()

    def epoch(self, n):
        self.model.train()
        self.batches.set_epoch(n)
        total, count, norms = 0.0, 0, []
        pending = 0
        for i, (x, y) in enumerate(self.loader):
            window = min(self.a.accum, len(self.loader) - i + i % self.a.accum)
            boundary = (i + 1) % self.a.accum == 0
            with nullcontext() if boundary else self.model.no_sync():
                loss = self.compute(x, y)
                (loss / window).backward()
            pending += 1
            if boundary:
                norms.append(self.step())
                pending = 0
            total, count = total + loss.item(), count + 1
        if pending:
            norms.append(self.step())
        t = torch.tensor([total, count])
        dist.all_reduce(t)
        return (t[0] / t[1]).item(), sum(norms) / len(norms)

    @torch.no_grad()
    def recall_at_1(self):
        self.model.eval()
        e, _ = self.model.module(self.gallery.x)
        mine = torch.arange(self.rank, len(e), self.world)
        sim = e[mine] @ e.t()
        sim[torch.arange(len(mine)), mine] = -2
        hit = (self.gallery.y[sim.argmax(1)] == self.gallery.y[mine]).sum()
        t = torch.tensor([hit.item(), len(mine)], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1]).item()

    def fit(self):
        best = -1.0
        for n in range(self.a.epochs):
            loss, norm = self.epoch(n)
            r1 = self.recall_at_1()
            log(f"epoch {n} loss {loss:.4f} grad {norm:.3f} R@1 {r1:.3f} updates {self.updates}")
            if r1 > best and self.rank == 0:
                os.makedirs(self.a.out, exist_ok=True)
                torch.save(self.model.module.state_dict(), os.path.join(self.a.out, "best.pt"))
            best = max(best, r1)
        dist.barrier()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--p", type=int, default=6)
    p.add_argument("--k", type=int, default=4)
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--warmup", type=int, default=4)
    p.add_argument("--margin", type=float, default=0.3)
    p.add_argument("--clip", type=float, default=5.0)
    p.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--seed", type=int, default=19)
    p.add_argument("--out", default="metric_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    Trainer(a).fit()
    dist.destroy_process_group()
