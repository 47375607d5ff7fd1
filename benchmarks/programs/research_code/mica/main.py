"""SimCLR-like pre-training on small images, augmentation in loader workers with numpy."""
import argparse
import logging
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from augment import AugmentedPairs

log = logging.getLogger("simclr")


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class WorkerSeeder:
    """Gives numpy and random of a loader worker their own seeds."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, worker_id):
        s = self.seed + worker_id
        np.random.seed(s)
        random.seed(s)


class Encoder(nn.Module):
    def __init__(self, ch=16, proj=24):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, ch, 3, 2, 1), nn.GroupNorm(4, ch), nn.ReLU(), nn.Conv2d(ch, 2 * ch, 3, 2, 1),
                                  nn.GroupNorm(4, 2 * ch), nn.ReLU(), nn.Flatten(), nn.Linear(2 * ch * 9, 48))
        self.proj = nn.Sequential(nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, proj))

    def forward(self, x):
        h = self.body(x)
        return h, F.normalize(self.proj(h), dim=1)


def nt_xent(z1, z2, t):
    """Local negatives only, DDP averages the ranks' losses."""
    z = torch.cat([z1, z2])
    n = len(z1)
    sim = (z @ z.t() / t).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e4)
    return F.cross_entropy(sim, torch.arange(2 * n).roll(n))


@torch.no_grad()
def linear_probe(net, ds, ridge=1e-2):
    """Closed-form ridge classifier on the clean images, statistics summed over ranks."""
    net.eval()
    r, w = dist.get_rank(), dist.get_world_size()
    x, y = ds.clean[r::w], ds.y[r::w]
    f = net(x)[0]
    f = torch.cat([f, torch.ones(len(f), 1)], 1).double()
    half = len(f) // 2
    t = F.one_hot(y, ds.classes).double()
    a, b = f[:half].t() @ f[:half], f[:half].t() @ t[:half]
    dist.all_reduce(a), dist.all_reduce(b)
    sol = torch.linalg.solve(a + ridge * torch.eye(len(a)).double(), b)
    hit = torch.tensor([((f[half:] @ sol).argmax(1) == y[half:]).sum(), len(f) - half], dtype=torch.float64)
    dist.all_reduce(hit)
    net.train()
    return (hit[0] / hit[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=40)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--temperature", type=float, default=0.2)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=45)
    p.add_argument("--out", default="simclr_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    seed_everything(a.seed + rank)
    ds = AugmentedPairs(640, seed=a.seed)
    sampler = DistributedSampler(ds, seed=a.seed, drop_last=True)
    loader = DataLoader(ds, a.batch, sampler=sampler, num_workers=a.workers, drop_last=True,
                        worker_init_fn=WorkerSeeder(a.seed), prefetch_factor=2)
    model = DDP(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs * len(loader))
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        s = torch.zeros(2)
        for v1, v2 in loader:
            z1, z2 = model(torch.cat([v1, v2]))[1].chunk(2)
            loss = nt_xent(z1, z2, a.temperature)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            s += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(s)
        log.info("epoch %d loss %.4f probe %.3f", epoch, s[0] / s[1], linear_probe(model.module, ds))
    if rank == 0:
        os.makedirs(a.out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(a.out, "encoder.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
