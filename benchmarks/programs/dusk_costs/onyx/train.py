"""Progressive resizing: the resolution grows by stage and the batch shrinks accordingly."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("resize")


class Textures(Dataset):
    """Oriented gratings; the class is the orientation bin."""

    def __init__(self, n, classes, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.arange(n) % classes
        self.angle = (self.y + 0.5 * torch.rand(n, generator=g)) * (3.1416 / classes)
        self.freq = 6 + 6 * torch.rand(n, generator=g)
        self.size = 32

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        ax = torch.linspace(-1, 1, self.size)
        yy, xx = torch.meshgrid(ax, ax, indexing="ij")
        wave = torch.sin(self.freq[i] * (xx * torch.cos(self.angle[i]) + yy * torch.sin(self.angle[i])))
        return wave.expand(3, -1, -1) + 0.3 * torch.randn(3, self.size, self.size), self.y[i]


def build(classes, ch):
    layers, cin = [], 3
    for k, s in ((ch, 1), (2 * ch, 2), (4 * ch, 2)):
        layers += [nn.Conv2d(cin, k, 3, stride=s, padding=1), nn.GroupNorm(4, k), nn.ReLU()]
        cin = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, classes))


def parse_stages(text):
    """'32x16@2' -> size 32, batch 16, 2 epochs."""
    for part in text.split(","):
        size, rest = part.split("x")
        batch, epochs = rest.split("@")
        yield int(size), int(batch), int(epochs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stages", default="32x16@2,64x12@1,128x8@1,176x8@1")
    ap.add_argument("--samples", type=int, default=384)
    ap.add_argument("--classes", type=int, default=6)
    ap.add_argument("--channels", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DDP(build(args.classes, args.channels))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    torch.manual_seed(10 + rank)
    data = Textures(args.samples, args.classes)

    epoch = 0
    for size, batch, epochs in parse_stages(args.stages):
        data.size = size
        sampler = DistributedSampler(data, seed=5)
        loader = DataLoader(data, batch, sampler=sampler, drop_last=True)
        for group in opt.param_groups:
            group["lr"] = args.lr * batch / 16
        for _ in range(epochs):
            sampler.set_epoch(epoch)
            t0, hits, seen = time.perf_counter(), 0, 0
            for x, y in loader:
                logits = model(x)
                loss = F.cross_entropy(logits, y)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                hits += (logits.argmax(1) == y).sum().item()
                seen += len(y)
            stats = torch.tensor([float(hits), float(seen)])
            dist.all_reduce(stats)
            if rank == 0:
                log.info("epoch %d size %d batch %d acc %.3f loss %.3f %.0f img/s", epoch, size, batch,
                         stats[0] / stats[1], loss.item(), stats[1] / (time.perf_counter() - t0))
            epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
