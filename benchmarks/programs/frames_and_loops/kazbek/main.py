import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from cache import DecodedCache


class Waves(Dataset):
    def __init__(self, first: int, count: int, cache: DecodedCache, augment: bool):
        self.first, self.count = first, count
        self.cache, self.augment = cache, augment

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        img = self.cache.get(self.first + i)
        target = img.std() - 0.5 * img.mean()
        if self.augment:
            img = torch.roll(img, int(torch.randint(0, img.size(0), ())), 0)
        return img.unsqueeze(0), target


class Regressor(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2), nn.GroupNorm(3, width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2), nn.GroupNorm(3, 2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, 1))

    def forward(self, x):
        return self.f(x).squeeze(1)


class Experiment:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.cache = DecodedCache(args.size, args.cache_items)
        self.train_set = Waves(0, args.train, self.cache, augment=True)
        self.val_set = Waves(10 ** 6, args.val, self.cache, augment=False)
        self.sampler = DistributedSampler(self.train_set, self.world, self.rank, seed=args.seed)
        self.train_loader = DataLoader(self.train_set, args.batch, sampler=self.sampler, drop_last=True)
        self.model = DistributedDataParallel(Regressor())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 1, 0.6)

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def prepare_validation(self):
        lo = self.rank * len(self.val_set) // self.world
        hi = (self.rank + 1) * len(self.val_set) // self.world
        if self.rank == 0:
            self.cache.warm(range(self.val_set.first, self.val_set.first + len(self.val_set)))
        self.cache.settle()
        part = torch.utils.data.Subset(self.val_set, range(lo, hi))
        return DataLoader(part, self.args.batch, num_workers=self.args.workers,
                          multiprocessing_context="fork" if self.args.workers else None)

    def fit_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in self.train_loader:
            loss = F.smooth_l1_loss(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            total += torch.tensor([loss.item(), 1.0])
        self.sched.step()
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        total = torch.zeros(2)
        for x, y in loader:
            total += torch.tensor([(self.model.module(x) - y).abs().sum().item(), float(len(y))])
        dist.all_reduce(total)
        self.model.train()
        return (total[0] / total[1]).item()

    def run(self):
        for epoch in range(self.args.epochs):
            t0 = time.time()
            loss = self.fit_epoch(epoch)
            mae = self.validate(self.prepare_validation())
            self.say(f"epoch {epoch} loss {loss:.4f} val mae {mae:.4f} cached {len(self.cache.items)} "
                     f"{time.time() - t0:.1f}s")
        if self.rank == 0:
            os.makedirs(self.args.out, exist_ok=True)
            torch.save(self.model.module.state_dict(), os.path.join(self.args.out, "regressor.pt"))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--train", type=int, default=400)
    p.add_argument("--val", type=int, default=240)
    p.add_argument("--size", type=int, default=28)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--cache-items", type=int, default=2000)
    p.add_argument("--seed", type=int, default=6)
    p.add_argument("--out", default="out_kazbek")
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    Experiment(args).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
