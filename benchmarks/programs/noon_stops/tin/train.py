import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from meters import MetricLogger
from model import GridDetector


class Scenes(Dataset):
    """Boxes for every scene; a handful of scenes also carry instance masks."""

    def __init__(self, n, masked=5, seed=0):
        self.n = n
        self.masked = set(torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:masked].tolist())

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = 0.2 * torch.randn(1, 32, 32, generator=g)
        cells, boxes, masks = torch.zeros(8, 8), torch.zeros(8, 8, 4), torch.zeros(8, 8, 16)
        for _ in range(3):
            r, c = torch.randint(0, 8, (2,), generator=g).tolist()
            size = torch.rand(2, generator=g)
            image[0, 4 * r:4 * r + 4, 4 * c:4 * c + 4] += 1 + size.sum()
            cells[r, c] = 1
            boxes[r, c] = torch.cat([size, size])
            masks[r, c] = (torch.rand(16, generator=g) < size[0]).float()
        return image, {"cells": cells, "boxes": boxes, "masks": masks, "has_mask": torch.tensor(i in self.masked)}


def train_one_epoch(model, opt, loader, epoch):
    model.train()
    loader.sampler.set_epoch(epoch)
    logger = MetricLogger()
    for images, targets in loader:
        opt.zero_grad(set_to_none=True)
        total, losses = model(images, targets)
        total.backward()
        opt.step()
        logger.update(**{k: v.item() for k, v in losses.items()}, lr=opt.param_groups[0]["lr"])
    logger.synchronize_between_processes()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}  {logger}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--scenes", type=int, default=1536)
    p.add_argument("--masked", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=32)
    args = p.parse_args()
    dist.init_process_group("gloo")
    data = Scenes(args.scenes, args.masked)
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data, seed=8), drop_last=True)
    torch.manual_seed(0)
    model = DDP(GridDetector())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    for epoch in range(args.epochs):
        train_one_epoch(model, opt, loader, epoch)
        sched.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
