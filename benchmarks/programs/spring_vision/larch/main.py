"""Single-stage grid detector, DDP training."""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import GridDetectionDataset, make_annotations
from labelstore import LabelStore

log = logging.getLogger("detector")


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.SiLU())


class GridDetector(nn.Module):
    def __init__(self, num_classes=4, width=16):
        super().__init__()
        self.body = nn.Sequential(ConvBlock(3, width, 2), ConvBlock(width, 2 * width, 2),
                                  ConvBlock(2 * width, 4 * width, 2), ConvBlock(4 * width, 4 * width))
        self.head = nn.Conv2d(4 * width, 5 + num_classes, 1)

    def forward(self, x):
        return self.head(self.body(x))


def detection_loss(pred, target):
    obj = target[:, 0]
    l_obj = F.binary_cross_entropy_with_logits(pred[:, 0], obj, reduction="none").mean((1, 2))
    l_box = (F.smooth_l1_loss(pred[:, 1:5], target[:, 1:5], reduction="none").sum(1) * obj).mean((1, 2))
    l_cls = (F.binary_cross_entropy_with_logits(pred[:, 5:], target[:, 5:], reduction="none").sum(1) * obj).mean((1, 2))
    return l_obj + 2.0 * l_box + l_cls


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--images", type=int, default=640)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--warmup-epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--out", default=None)
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s %(name)s: %(message)s")
    torch.manual_seed(0)
    out = args.out or tempfile.mkdtemp(prefix="griddet-")

    store = LabelStore(make_annotations(args.images, seed=11))
    stats_path = os.path.join(out, "labels.json.gz")
    dataset = GridDetectionDataset(store)
    sampler = DistributedSampler(dataset, world, rank, shuffle=True, drop_last=True)
    # workers are started anew each epoch: they have to see the statistics of the last one
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=True)

    model = DDP(GridDetector())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        dataset.epoch = epoch
        if rank == 0 and epoch == args.warmup_epochs:
            store.autosave(stats_path)
        model.train()
        t0, total = time.time(), 0.0
        for images, targets, indices in loader:
            per_image = detection_loss(model(images), targets)
            loss = per_image.mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            store.record(indices.tolist(), per_image.detach().tolist())
            total += loss.item()
        mean = torch.tensor(total / len(loader))
        dist.all_reduce(mean)
        log.info("epoch %d loss %.4f (%.1fs)", epoch, mean.item() / world, time.time() - t0)

    store.close(stats_path)
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(out, "last.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
