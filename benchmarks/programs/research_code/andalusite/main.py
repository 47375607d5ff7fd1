"""Curriculum over growing difficulty with shared multi-scale sizes and mixup weights."""
import argparse
import json
import logging
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler

log = logging.getLogger("curriculum")


class Textures(Dataset):
    """Gratings; `level` is the noise. Crops are drawn with a generator of the loader worker."""

    def __init__(self, n, level, seed, train=True):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 5, (n,), generator=g)
        ang = self.y * 0.6 + 0.1 * torch.randn(n, generator=g)
        yy, xx = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
        ph = 6.28 * torch.rand(n, generator=g)
        u = torch.cos(ang)[:, None, None] * xx + torch.sin(ang)[:, None, None] * yy
        self.x = (torch.sin(u + ph[:, None, None]) + level * torch.randn(n, 24, 24, generator=g))[:, None]
        self.train = train

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        if not self.train:
            return self.x[i, :, 2:22, 2:22], self.y[i]
        t, l = random.randrange(5), random.randrange(5)
        return self.x[i, :, t:t + 20, l:l + 20], self.y[i]


class SharedDice:
    """Draws that have to be the same on every rank: image size and mixup weight of a step."""

    def __init__(self, seed, sizes, alpha):
        self.rng = random.Random(seed)
        self.sizes, self.alpha = sizes, alpha

    def draw(self):
        lam = self.rng.betavariate(self.alpha, self.alpha)
        return self.rng.choice(self.sizes), max(lam, 1 - lam)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU())
        self.h = nn.Linear(32, 5)

    def forward(self, x):
        return self.h(self.f(x).mean((2, 3)))


def stage_loader(parts, a, stage):
    """Each stage is a new dataset; the sampler is told the running epoch so that orders never repeat."""
    ds = ConcatDataset(parts)
    sampler = DistributedSampler(ds, seed=a.seed + stage)
    return DataLoader(ds, a.batch, sampler=sampler, num_workers=0), sampler


@torch.no_grad()
def evaluate(net, ds):
    net.eval()
    idx = range(dist.get_rank(), len(ds), dist.get_world_size())
    x = torch.stack([ds[i][0] for i in idx])
    y = torch.stack([ds[i][1] for i in idx])
    t = torch.tensor([(net(x).argmax(1) == y).sum(), len(y)], dtype=torch.float64)
    dist.all_reduce(t)
    net.train()
    return (t[0] / t[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs-per-stage", type=int, default=2)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--alpha", type=float, default=0.3)
    p.add_argument("--seed", type=int, default=50)
    p.add_argument("--out", default="curriculum_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(a.seed)
    random.seed(a.seed * 1000 + rank)
    dice = SharedDice(a.seed, (16, 20, 24), a.alpha)
    mixer = torch.Generator().manual_seed(a.seed * 77 + rank)
    levels = [Textures(240, lv, seed=10 + k) for k, lv in enumerate((0.3, 0.8, 1.4))]
    test = Textures(201, 0.8, seed=99, train=False)
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr)
    history, epoch = [], 0
    for stage in range(len(levels)):
        loader, sampler = stage_loader(levels[:stage + 1], a, stage)
        for g in opt.param_groups:
            g["lr"] = a.lr * 0.6 ** stage
        for _ in range(a.epochs_per_stage):
            sampler.set_epoch(epoch)
            s, sizes = torch.zeros(2), []
            for x, y in loader:
                size, lam = dice.draw()
                sizes.append(size)
                x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
                j = torch.randperm(len(x), generator=mixer)
                out = model(lam * x + (1 - lam) * x[j])
                loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[j])
                opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 3.0)
                opt.step()
                s += torch.tensor([loss.item(), 1.0])
            dist.all_reduce(s)
            acc = evaluate(model.module, test)
            log.info("stage %d epoch %d loss %.4f acc %.3f mean size %.1f", stage, epoch, s[0] / s[1], acc, sum(sizes) / len(sizes))
            history.append({"stage": stage, "epoch": epoch, "acc": acc})
            epoch += 1
    if rank == 0:
        os.makedirs(a.out, exist_ok=True)
        with open(os.path.join(a.out, "history.json"), "w") as f:
            json.dump(history, f)
        torch.save(model.module.state_dict(), os.path.join(a.out, "net.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
