import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from metrics import SegmentationMeter

logging.basicConfig(format="%(asctime)s | %(message)s", datefmt="%H:%M:%S")
LOG = logging.getLogger("seg")


class Fields(Dataset):
    """Aerial-like patches: each class is a band of texture."""

    def __init__(self, n, size, classes):
        self.n, self.size, self.classes = n, size, classes

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        coarse = torch.randint(0, self.classes, (1, 1, 4, 4), generator=g).float()
        mask = F.interpolate(coarse, size=(self.size, self.size))[0, 0].long()
        base = torch.stack([mask % 3, mask // 3, mask % 2]).float() / 2
        return base + 0.3 * torch.randn(3, self.size, self.size, generator=g), mask


class TinyUNet(nn.Module):
    def __init__(self, classes, c=12):
        super().__init__()
        self.d1 = nn.Sequential(nn.Conv2d(3, c, 3, padding=1), nn.ReLU())
        self.d2 = nn.Sequential(nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU())
        self.d3 = nn.Sequential(nn.Conv2d(2 * c, 2 * c, 3, 2, 1), nn.ReLU())
        self.u2 = nn.Conv2d(4 * c, c, 3, padding=1)
        self.u1 = nn.Conv2d(2 * c, c, 3, padding=1)
        self.out = nn.Conv2d(c, classes, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(a)
        h = F.interpolate(self.d3(b), scale_factor=2)
        h = F.relu(self.u2(torch.cat([h, b], 1)))
        h = F.relu(self.u1(torch.cat([F.interpolate(h, scale_factor=2), a], 1)))
        return self.out(h)


def dice(logits, mask, classes):
    p = logits.softmax(1)
    t = F.one_hot(mask, classes).permute(0, 3, 1, 2).float()
    num = 2 * (p * t).sum((0, 2, 3))
    return 1 - (num / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + 1e-6)).mean()


def fit(args):
    rank = dist.get_rank()
    LOG.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    torch.manual_seed(0)
    ds = Fields(args.images, args.size, args.classes)
    sampler = DistributedSampler(ds, seed=1)
    loader = DataLoader(ds, args.batch, sampler=sampler, drop_last=True)
    net = DistributedDataParallel(TinyUNet(args.classes))
    optim = torch.optim.AdamW(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(optim, args.lr, total_steps=args.epochs * len(loader))
    meter = SegmentationMeter(args.classes)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for img, mask in loader:
            logits = net(img)
            loss = F.cross_entropy(logits, mask) + 0.5 * dice(logits, mask, args.classes)
            optim.zero_grad()
            loss.backward()
            optim.step()
            sched.step()
            meter.update(logits, mask)
        LOG.info("epoch %d loss %.4f train mIoU %.4f", epoch, loss.item(), meter.compute())
    if rank == 0:
        torch.save(net.module.state_dict(), "unet.pt")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--images", type=int, default=192)
    p.add_argument("--size", type=int, default=80)
    p.add_argument("--classes", type=int, default=9)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--lr", type=float, default=6e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    try:
        fit(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
