"""Iteration-based training of a small point-cloud segmenter with an endless sampler and hooks."""
import argparse
import itertools
import logging
import time
import weakref

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

logger = logging.getLogger("seg")


class Clouds(Dataset):
    """Variable-size clouds of spheres, planes and lines."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            parts = []
            for c in range(3):
                m = int(torch.randint(20, 60, (1,), generator=g))
                u = torch.randn(m, 3, generator=g)
                base = [F.normalize(u, dim=1), u * torch.tensor([1.0, 1.0, 0.02]), u * torch.tensor([0.05, 0.05, 1.5])][c]
                parts.append((base + 1.5 * torch.randn(3, generator=g), torch.full((m,), c)))
            self.items.append((torch.cat([p for p, _ in parts]), torch.cat([y for _, y in parts])))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    off = torch.tensor([len(p) for p, _ in batch])
    cloud = torch.arange(len(batch)).repeat_interleave(off)
    return torch.cat([p for p, _ in batch]), torch.cat([y for _, y in batch]), cloud


class TrainingSampler(Sampler):
    """Endless stream of shuffled passes, all ranks share the seed and take every world-th index."""

    def __init__(self, size, seed):
        self.size, self.seed = size, seed
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def _stream(self):
        g = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.size, generator=g).tolist()

    def __iter__(self):
        return itertools.islice(self._stream(), self.rank, None, self.world)


class PointNet(nn.Module):
    def __init__(self, width=48, classes=3):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.LayerNorm(width), nn.ReLU())
        self.out = nn.Linear(width, classes)

    def forward(self, p, cloud):
        n = int(cloud.max()) + 1
        cnt = torch.zeros(n).index_add(0, cloud, torch.ones(len(p)))[:, None]
        mean = torch.zeros(n, 3).index_add(0, cloud, p) / cnt
        rel = p - mean[cloud]
        h = self.point(torch.cat([rel, rel.abs()], 1))
        glob = torch.zeros(n, h.shape[1]).index_add(0, cloud, h) / cnt
        return self.out(self.mix(torch.cat([h, glob[cloud]], 1)))


class Hook:
    trainer = None

    def before_train(self): ...
    def after_step(self): ...
    def after_train(self): ...


class LRHook(Hook):
    def __init__(self, milestones, warm):
        self.milestones, self.warm = milestones, warm

    def before_train(self):
        self.base = [g["lr"] for g in self.trainer.opt.param_groups]
        self.after_step()

    def after_step(self):
        it = self.trainer.iter + 2
        f = min(1.0, it / self.warm) * 0.1 ** sum(it > m for m in self.milestones)
        for g, b in zip(self.trainer.opt.param_groups, self.base):
            g["lr"] = b * f


class WriterHook(Hook):
    def __init__(self, period):
        self.period, self.sum, self.n, self.t = period, 0.0, 0, time.time()

    def after_step(self):
        self.sum, self.n = self.sum + self.trainer.last_loss, self.n + 1
        if (self.trainer.iter + 1) % self.period == 0:
            s = torch.tensor([self.sum / self.n])
            dist.reduce(s, 0)
            logger.info("iter %d loss %.4f lr %.1e %.1fs", self.trainer.iter + 1, s.item() / dist.get_world_size(),
                        self.trainer.opt.param_groups[0]["lr"], time.time() - self.t)
            self.sum, self.n, self.t = 0.0, 0, time.time()


class EvalHook(Hook):
    """Clouds are dealt without padding; counters are summed."""

    def __init__(self, period, ds):
        self.period, self.ds = period, ds

    @torch.no_grad()
    def after_step(self):
        if (self.trainer.iter + 1) % self.period:
            return
        net = self.trainer.model.module.eval()
        inter, union = torch.zeros(3), torch.zeros(3)
        for i in range(dist.get_rank(), len(self.ds), dist.get_world_size()):
            p, y, c = collate([self.ds[i]])
            z = net(p, c).argmax(1)
            for k in range(3):
                inter[k] += ((z == k) & (y == k)).sum()
                union[k] += ((z == k) | (y == k)).sum()
        both = torch.stack([inter, union])
        dist.all_reduce(both)
        net.train()
        logger.info("iter %d mIoU %.3f", self.trainer.iter + 1, (both[0] / both[1]).mean())


class Trainer:
    def __init__(self, model, opt, loader, iters, hooks):
        self.model, self.opt, self.stream, self.iters, self.hooks = model, opt, iter(loader), iters, hooks
        self.iter = -1
        for h in hooks:
            h.trainer = weakref.proxy(self)

    def step(self):
        p, y, c = next(self.stream)
        points = torch.tensor(float(len(y)))
        dist.all_reduce(points)
        loss = F.cross_entropy(self.model(p, c), y, reduction="sum") * dist.get_world_size() / points
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.last_loss = loss.item()

    def train(self):
        for h in self.hooks:
            h.before_train()
        for self.iter in range(self.iters):
            self.step()
            for h in self.hooks:
                h.after_step()
        for h in self.hooks:
            h.after_train()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=80)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=23)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(a.seed + dist.get_rank())
    train, val = Clouds(120, 1), Clouds(31, 2)
    loader = DataLoader(train, batch_sampler=BatchSampler(TrainingSampler(len(train), a.seed), a.batch, drop_last=True), collate_fn=collate)
    model = DistributedDataParallel(PointNet())
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr)
    Trainer(model, opt, loader, a.iters, [LRHook([a.iters * 3 // 4], 10), WriterHook(20), EvalHook(40, val)]).train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
