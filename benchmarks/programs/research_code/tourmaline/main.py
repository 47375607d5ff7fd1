"""Click prediction: user table split by rows over ranks, dense part replicated."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from table import ShardedTable

log = logging.getLogger("ctr")


def clicks(n, users, items, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.Generator().manual_seed(99)
    u, v = torch.randn(users, 4, generator=w), torch.randn(items, 4, generator=w)
    a, b = torch.randint(0, users, (n,), generator=g), torch.randint(0, items, (n,), generator=g)
    d = torch.randn(n, 5, generator=g)
    p = torch.sigmoid((u[a] * v[b]).sum(1) + d[:, 0])
    return TensorDataset(a, b, d, (torch.rand(n, generator=g) < p).float())


class Dense(nn.Module):
    def __init__(self, items, dim):
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim + 6, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, u, b, d):
        v = self.item(b)
        dot = (u * v).sum(1, keepdim=True)
        return (self.mlp(torch.cat([u, v, d, dot], 1)) + dot).squeeze(1)


class Recommender:
    def __init__(self, a):
        torch.manual_seed(a.seed)
        self.world = dist.get_world_size()
        dense = Dense(a.items, a.dim)
        self.table = ShardedTable(a.users, a.dim, seed=a.seed)
        self.dense = DDP(dense)
        self.opt_dense = torch.optim.SGD(self.dense.parameters(), lr=a.lr, momentum=0.9)
        self.opt_table = torch.optim.SGD(self.table.parameters(), lr=a.table_lr)

    def loss(self, users, items, d, y):
        return F.binary_cross_entropy_with_logits(self.dense(self.table(users), items, d), y)

    def step(self, batch):
        loss = self.loss(*batch)
        self.opt_dense.zero_grad()
        self.opt_table.zero_grad()
        loss.backward()
        for p in self.table.parameters():
            p.grad.div_(self.world)
        self.opt_dense.step()
        self.opt_table.step()
        return loss.detach()

    @torch.no_grad()
    def auc(self, ds):
        """Scores of equal parts are gathered; the rest of the division goes to the last rank as padding and is cut."""
        r, w, n = dist.get_rank(), self.world, len(ds)
        per = -(-n // w)
        idx = torch.arange(r * per, (r + 1) * per).clamp(max=n - 1)
        u, i, d, _ = (t[idx] for t in ds.tensors)
        s = self.dense.module(self.table(u), i, d)
        parts = [torch.empty_like(s) for _ in range(w)]
        dist.all_gather(parts, s)
        s, y = torch.cat(parts)[:n], ds.tensors[3]
        rank = s.argsort().argsort().double() + 1
        pos = y.sum().double()
        return ((rank[y > 0].sum() - pos * (pos + 1) / 2) / (pos * (n - pos))).item()

    def save(self, path):
        """Dense part once, the table by rank."""
        os.makedirs(path, exist_ok=True)
        r = dist.get_rank()
        torch.save({"table": self.table.state_dict(), "opt": self.opt_table.state_dict(), "rows": (self.table.lo, self.table.hi)},
                   os.path.join(path, f"table{r}of{self.world}.pt"))
        if r == 0:
            torch.save({"dense": self.dense.module.state_dict(), "opt": self.opt_dense.state_dict()}, os.path.join(path, "dense.pt"))
        dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--users", type=int, default=401)
    p.add_argument("--items", type=int, default=150)
    p.add_argument("--dim", type=int, default=8)
    p.add_argument("--global-batch", type=int, default=128)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--table-lr", type=float, default=4.0)
    p.add_argument("--seed", type=int, default=37)
    p.add_argument("--out", default="ctr_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    train, test = clicks(6400, a.users, a.items, 1), clicks(1501, a.users, a.items, 2)
    sampler = DistributedSampler(train, seed=a.seed, drop_last=True)
    loader = DataLoader(train, a.global_batch // world, sampler=sampler, drop_last=True)
    rec = Recommender(a)
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        s = sum(rec.step(b) for b in loader) / len(loader)
        dist.all_reduce(s)
        log.info("epoch %d loss %.5f auc %.4f |table| %.4f", epoch, s.item() / world, rec.auc(test), rec.table.norm())
    rec.save(a.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
