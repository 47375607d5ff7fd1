import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from monitor import ActivationMonitor

logger = logging.getLogger("segment")


class Shapes(Dataset):
    def __init__(self, n, seed, size=48):
        self.n, self.seed, self.size = n, seed, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        yy, xx = torch.meshgrid(torch.arange(self.size), torch.arange(self.size), indexing="ij")
        cy, cx = torch.randint(10, self.size - 10, (2,), generator=g)
        r = torch.randint(4, 10, (1,), generator=g)
        mask = ((yy - cy) ** 2 + (xx - cx) ** 2 < r ** 2).float()
        img = mask * 0.8 + 0.5 * torch.randn(self.size, self.size, generator=g)
        return img.unsqueeze(0), mask.unsqueeze(0)


class UNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.down1, self.down2 = self._block(1, w), self._block(w, 2 * w)
        self.mid = self._block(2 * w, 2 * w)
        self.up1, self.up2 = self._block(4 * w, w), self._block(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    @staticmethod
    def _block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.LeakyReLU(0.05))

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        d = self.up1(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        return self.out(self.up2(torch.cat([F.interpolate(d, scale_factor=2), a], 1)))


@torch.no_grad()
def dice(model, loader):
    model.eval()
    acc = torch.zeros(2)
    for img, mask in loader:
        pred = (model(img) > 0).float()
        acc += torch.tensor([2 * (pred * mask).sum().item(), (pred.sum() + mask.sum()).item()])
    dist.all_reduce(acc)
    model.train()
    return (acc[0] / acc[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--train-images", type=int, default=640)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--save", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "unet.pt"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(name)s: %(message)s")
    torch.manual_seed(1)

    train, val = Shapes(args.train_images, 1), Shapes(96, 2)
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, args.batch_size, sampler=sampler)
    val_loader = DataLoader(val, 16, sampler=DistributedSampler(val, shuffle=False))
    net = UNet()
    monitor = ActivationMonitor(net, (nn.LeakyReLU,))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total, steps = 0.0, 0
        for img, mask in loader:
            logits = model(img)
            loss = F.binary_cross_entropy_with_logits(logits, mask, pos_weight=torch.tensor(3.0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            steps += 1
        score = dice(model, val_loader)
        logger.info("epoch %d loss %.4f dice %.4f", epoch, total / steps, score)
        for name, (mean, dead) in monitor.summary().items():
            logger.info("  %-8s mean %.3f below zero %.2f", name, mean, dead)
        if rank == 0:
            torch.save(net.state_dict(), args.save)
        dist.barrier()
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
