"""Set-free grid detector: losses are normalized by the number of boxes in the whole global batch."""
import argparse
import contextlib
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("detect")


@dataclass
class Config:
    epochs: int = 3
    batch_size: int = 4
    accumulate: int = 2
    lr: float = 4e-3
    grid: int = 4
    classes: int = 3
    box_weight: float = 2.0
    seed: int = 29


class Scenes(Dataset):
    """0 to 4 rectangles per picture, at most one per grid cell."""

    def __init__(self, cfg, n, seed):
        self.cfg = cfg
        self.items = []
        for i in range(n):
            g = torch.Generator().manual_seed(seed * 9973 + i)
            img = torch.randn(3, 16, 16, generator=g) * 0.3
            cls = torch.full((cfg.grid, cfg.grid), cfg.classes)
            box = torch.zeros(4, cfg.grid, cfg.grid)
            for cell in torch.randperm(cfg.grid ** 2, generator=g)[: int(torch.randint(0, 5, (1,), generator=g))].tolist():
                r, c = divmod(cell, cfg.grid)
                k = int(torch.randint(0, cfg.classes, (1,), generator=g))
                h, w = torch.randint(2, 5, (2,), generator=g).tolist()
                img[k, r * 4:r * 4 + h, c * 4:c * 4 + w] += 1.5
                cls[r, c] = k
                box[:, r, c] = torch.tensor([h / 8, w / 8, h / 4, w / 4])
            self.items.append((img, cls, box))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class GridDetector(nn.Module):
    def __init__(self, cfg, ch=12):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, ch, 3, 2, 1), nn.GroupNorm(3, ch), nn.ReLU(),
                                  nn.Conv2d(ch, ch * 2, 3, 2, 1), nn.GroupNorm(3, ch * 2), nn.ReLU())
        self.cls = nn.Conv2d(ch * 2, cfg.classes + 1, 1)
        self.box = nn.Conv2d(ch * 2, 4, 1)

    def forward(self, x):
        h = self.body(x)
        return self.cls(h), self.box(h).sigmoid()


class Criterion:
    def __init__(self, cfg):
        self.cfg, self.world = cfg, dist.get_world_size()

    def sums(self, out, cls, box):
        logits, pred = out
        weight = torch.ones(self.cfg.classes + 1)
        weight[-1] = 0.2
        ce = F.cross_entropy(logits, cls, weight=weight, reduction="sum")
        has = (cls != self.cfg.classes).unsqueeze(1)
        l1 = ((pred - box).abs() * has).sum()
        return ce + self.cfg.box_weight * l1

    def global_boxes(self, group):
        """Boxes in all micro-batches of this update, over all ranks."""
        count = torch.tensor(float(sum(int((cls != self.cfg.classes).sum()) for _, cls, _ in group)))
        dist.all_reduce(count)
        return count.clamp(min=1.0)


def grouped(loader, k):
    group = []
    for batch in loader:
        group.append(batch)
        if len(group) == k:
            yield group
            group = []
    if group:
        yield group


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--accumulate", type=int, default=Config.accumulate)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, accumulate=a.accumulate)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    data = Scenes(cfg, 96, 1)
    sampler = DistributedSampler(data, seed=cfg.seed)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler)
    model, criterion = DDP(GridDetector(cfg)), Criterion(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total, updates = torch.zeros(1), 0
        for group in grouped(loader, cfg.accumulate):
            boxes = criterion.global_boxes(group)
            opt.zero_grad()
            for i, (img, cls, box) in enumerate(group):
                last = i == len(group) - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    # DDP averages over ranks, hence the factor `world`
                    loss = criterion.sums(model(img), cls, box) * world / boxes
                    loss.backward()
                total += loss.detach() / world
            opt.step()
            updates += 1
        dist.all_reduce(total)
        if rank == 0:
            log.info("epoch %d loss per box %.4f (%d updates)", epoch, total.item() / updates, updates)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
