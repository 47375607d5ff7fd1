"""Momentum-contrast pre-training on tabular views with a shared key queue."""
import argparse
import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class TwoViews(Dataset):
    def __init__(self, n, seed, salt):
        g = torch.Generator().manual_seed(seed)
        c = torch.randn(12, 32, generator=g) * 1.5
        self.y = torch.randint(0, 12, (n,), generator=g)
        self.x = c[self.y] + torch.randn(n, 32, generator=g)
        self.gen = torch.Generator().manual_seed(1000 + salt)

    def __len__(self):
        return len(self.x)

    def view(self, x):
        keep = torch.rand(32, generator=self.gen) > 0.2
        return x * keep + 0.2 * torch.randn(32, generator=self.gen)

    def __getitem__(self, i):
        return self.view(self.x[i]), self.view(self.x[i]), self.y[i]


def encoder(dim=24):
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, dim))


@torch.no_grad()
def gather(x):
    out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(out, x.contiguous())
    return torch.cat(out)


class KeyQueue:
    """Ring of the last keys; filled with the keys of every rank."""

    def __init__(self, size, dim, seed):
        g = torch.Generator().manual_seed(seed)
        self.keys = F.normalize(torch.randn(size, dim, generator=g), dim=1)
        self.ptr = 0
        self.seen = 0

    @torch.no_grad()
    def push(self, k):
        n = len(self.keys)
        idx = (self.ptr + torch.arange(len(k))) % n
        self.keys[idx] = k
        self.ptr = int((self.ptr + len(k)) % n)
        self.seen += len(k)


class Moco:
    def __init__(self, args):
        self.a = args
        torch.manual_seed(args.seed)
        base = encoder()
        self.key = copy.deepcopy(base).requires_grad_(False)
        self.query = DDP(base)
        self.queue = KeyQueue(args.queue, 24, args.seed)
        self.recent = []

    @torch.no_grad()
    def momentum(self, m):
        for k, q in zip(self.key.parameters(), self.query.module.parameters()):
            k.data.mul_(m).add_(q.data, alpha=1 - m)

    @torch.no_grad()
    def encode_keys(self, x, step):
        """Keys are computed on a batch that is shuffled over ranks, as one would do with batch norm."""
        every = gather(x)
        perm = torch.randperm(len(every), generator=torch.Generator().manual_seed(step))
        back = perm.argsort()
        r, n = dist.get_rank(), len(x)
        k = F.normalize(self.key(every[perm[r * n:(r + 1) * n]]), dim=1)
        k_all = gather(k)[back]
        return k_all[r * n:(r + 1) * n], k_all

    def loss(self, v1, v2, step):
        q = F.normalize(self.query(v1), dim=1)
        self.momentum(self.a.momentum)
        k, k_all = self.encode_keys(v2, step)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.keys.t().clone()
        logits = torch.cat([pos, neg], 1) / self.a.temperature
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        self.queue.push(k_all)
        self.recent.append(loss.detach())
        if len(self.recent) > self.a.smooth:
            self.recent.pop(0)
        return loss


@torch.no_grad()
def knn(moco, ds):
    net = moco.query.module
    f = F.normalize(net(ds.x), dim=1)
    r, w = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(r, len(f), w)
    sim = f[mine] @ f.t()
    sim[torch.arange(len(mine)), mine] = -9
    vote = ds.y[sim.topk(5, dim=1).indices].mode(1).values
    t = torch.tensor([(vote == ds.y[mine]).sum(), len(mine)], dtype=torch.float64)
    dist.all_reduce(t)
    return (t[0] / t[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--queue", type=int, default=256)
    p.add_argument("--momentum", type=float, default=0.95)
    p.add_argument("--temperature", type=float, default=0.2)
    p.add_argument("--smooth", type=int, default=16)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=10)
    p.add_argument("--out", default="moco_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ds = TwoViews(768, seed=1, salt=rank)
    sampler = DistributedSampler(ds, seed=a.seed, drop_last=True)
    loader = DataLoader(ds, a.batch, sampler=sampler, drop_last=True)
    moco = Moco(a)
    opt = torch.optim.AdamW(moco.query.parameters(), lr=a.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs * len(loader))
    step = 0
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        for v1, v2, _ in loader:
            loss = moco.loss(v1, v2, step)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            step += 1
        mean = torch.stack(moco.recent).mean()
        dist.all_reduce(mean)
        acc = knn(moco, ds)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / dist.get_world_size():.4f} knn {acc:.3f} queue ptr {moco.queue.ptr} seen {moco.queue.seen}", flush=True)
            os.makedirs(a.out, exist_ok=True)
            torch.save({"query": moco.query.module.state_dict(), "key": moco.key.state_dict(), "queue": moco.queue.keys,
                        "ptr": moco.queue.ptr, "opt": opt.state_dict(), "epoch": epoch}, os.path.join(a.out, "moco.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
