"""Head tuning on a frozen backbone: features are extracted once and read from memory."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset

log = logging.getLogger("head")


class Scenes(Dataset):
    def __init__(self, n, classes, size):
        self.n, self.classes, self.size = n, classes, size
        self.proto = torch.randn(classes, 3, 8, 8, generator=torch.Generator().manual_seed(2))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        y = i % self.classes
        x = F.interpolate(self.proto[y][None], size=(self.size, self.size))[0]
        return x + torch.randn(x.shape, generator=g), y


class Backbone(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, ch, 5, stride=2, padding=2), nn.ReLU(),
                                 nn.Conv2d(ch, 2 * ch, 3, padding=1), nn.ReLU(),
                                 nn.Conv2d(2 * ch, 2 * ch, 3, stride=2, padding=1))

    def forward(self, x):
        return self.net(x)


@torch.no_grad()
def extract(backbone, shard, batch):
    """Spatial features of the local shard; kept in memory for all later epochs."""
    backbone.eval()
    feats, labels = [], []
    for images, y in DataLoader(shard, batch):
        feats.append(backbone(images))
        labels.append(y)
        if len(feats) % 10 == 0:
            log.info("extracted %d of %d", len(feats) * batch, len(shard))
    return feats, labels


class FeatureSet(Dataset):
    def __init__(self, feats, labels):
        self.rows = [f for chunk in feats for f in chunk]
        self.labels = torch.cat(labels)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], self.labels[i]

    def megabytes(self):
        return sum(r.numel() for r in self.rows) * 4 / 2 ** 20


class Head(nn.Module):
    def __init__(self, ch, classes):
        super().__init__()
        self.conv = nn.Conv2d(ch, ch, 3, padding=1)
        self.attn = nn.Conv2d(ch, 1, 1)
        self.fc = nn.Linear(ch, classes)

    def forward(self, f):
        h = F.relu(self.conv(f))
        w = self.attn(h).flatten(2).softmax(-1)
        return self.fc((h.flatten(2) * w).sum(-1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=960)
    ap.add_argument("--classes", type=int, default=8)
    ap.add_argument("--size", type=int, default=96)
    ap.add_argument("--channels", type=int, default=20)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    data = Scenes(args.samples, args.classes, args.size)
    # fixed shards: a sample stays on the rank that holds its features
    mine = Subset(data, range(rank, len(data) // world * world, world))
    feats = FeatureSet(*extract(Backbone(args.channels), mine, args.batch_size))
    log.info("rank %d holds %d features, %.0f MB", rank, len(feats), feats.megabytes())
    head = DDP(Head(2 * args.channels, args.classes))
    opt = torch.optim.AdamW(head.parameters(), lr=2e-3)
    loader = DataLoader(feats, args.batch_size, shuffle=True,
                        generator=torch.Generator().manual_seed(20 + rank))
    for epoch in range(args.epochs):
        t0, total = time.perf_counter(), torch.zeros(2)
        for f, y in loader:
            logits = head(f)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([(logits.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(total)
        if rank == 0:
            log.info("epoch %d acc %.3f %.1fs", epoch, total[0] / total[1], time.perf_counter() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
