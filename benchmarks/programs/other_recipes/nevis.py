"""Classification with repeated augmentation: each image appears several times per epoch, on different ranks."""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

log = logging.getLogger("repeat-aug")


@dataclass
class Config:
    epochs: int = 4
    repeats: int = 3
    batch_size: int = 16
    lr: float = 2e-3
    mixup: float = 0.2
    seed: int = 23


class RepeatAugSampler(Sampler):
    """Shuffles the images, repeats every one `repeats` times in a row and deals the copies out to the ranks,
    so that the copies of an image land on different ranks with different augmentations. An epoch keeps the
    length of a plain one: only the first len(dataset) / repeats images of the shuffle are shown in it."""

    def __init__(self, n, repeats, seed):
        self.n, self.repeats, self.seed = n, repeats, seed
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.total = math.ceil(n * repeats / self.world) * self.world
        self.selected = n // self.world
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.selected

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.n, generator=g).repeat_interleave(self.repeats)
        order = torch.cat([order, order[: self.total - len(order)]])
        return iter(order[self.rank::self.world][: self.selected].tolist())


class Pictures(Dataset):
    def __init__(self, n, seed, augment):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 5, (n,), generator=g)
        proto = torch.randn(5, 3, 12, 12, generator=torch.Generator().manual_seed(2))
        self.x = 0.8 * proto[self.y] + torch.randn(n, 3, 12, 12, generator=g)
        self.augment = augment

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if self.augment:
            dy, dx = torch.randint(-1, 2, (2,)).tolist()
            x = x.roll((dy, dx), (1, 2)) + 0.1 * torch.randn_like(x)
            if torch.rand(()) < 0.3:
                at = int(torch.randint(0, 9, ()))
                x = x.clone()
                x[:, at:at + 4, at:at + 4] = 0
        return x, self.y[i]


class ConvMixer(nn.Module):
    def __init__(self, dim=16, depth=2, classes=5):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 2, 2)
        self.blocks = nn.ModuleList(nn.Sequential(
            nn.Conv2d(dim, dim, 3, padding=1, groups=dim), nn.GELU(), nn.GroupNorm(1, dim),
            nn.Conv2d(dim, dim, 1), nn.GELU()) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def soft_cross_entropy(logits, target):
    return -(target * logits.log_softmax(-1)).sum(-1).mean()


def mixup(x, y, alpha, gen):
    lam = 1 - alpha * torch.rand((), generator=gen).item()
    perm = torch.randperm(len(x), generator=gen)
    one = nn.functional.one_hot(y, 5).float()
    return lam * x + (1 - lam) * x[perm], lam * one + (1 - lam) * one[perm]


@torch.no_grad()
def validate(net, data):
    net.eval()
    rank, world = dist.get_rank(), dist.get_world_size()
    hits = (net(data.x[rank::world]).argmax(1) == data.y[rank::world]).sum().float()
    dist.all_reduce(hits)
    net.train()
    return hits.item() / len(data)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--repeats", type=int, default=Config.repeats)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, repeats=a.repeats)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg.seed)
    model = DDP(ConvMixer())
    torch.manual_seed(cfg.seed * 77 + rank)
    mix_gen = torch.Generator().manual_seed(cfg.seed * 78 + rank)
    train, val = Pictures(192, 1, True), Pictures(80, 3, False)
    sampler = RepeatAugSampler(len(train), cfg.repeats, cfg.seed)
    loader = DataLoader(train, cfg.batch_size, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4 * cfg.lr, total_steps=cfg.epochs * len(loader))
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            x, target = mixup(x, y, cfg.mixup, mix_gen)
            loss = soft_cross_entropy(model(x), target)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            total += loss.detach()
        dist.all_reduce(total)
        acc = validate(model.module, val)
        if rank == 0:
            log.info("epoch %d loss %.4f acc %.3f", epoch, total.item() / len(loader) / dist.get_world_size(), acc)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
