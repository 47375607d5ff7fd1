"""Semi-supervised segmentation with a mean teacher.

    torchrun --nproc_per_node 2 train.py
"""
import argparse
import itertools
import logging
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from dataset import Blobs
from mean_teacher import MeanTeacher

logger = logging.getLogger("semi")


def block(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(4, cout), nn.ReLU(inplace=True))


class SegNet(nn.Module):
    def __init__(self, width=24, classes=3):
        super().__init__()
        self.down1 = block(3, width)
        self.down2 = nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width))
        self.up = block(3 * width, width)
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.down1(x)
        b = F.interpolate(self.down2(a), size=a.shape[-2:], mode="bilinear", align_corners=False)
        return self.classifier(self.up(torch.cat([a, b], 1)))


def augment(x, gen, strength):
    gain = 1 + strength * (torch.rand(x.size(0), 3, 1, 1, generator=gen) - 0.5)
    return x * gain + 0.3 * strength * torch.randn(x.shape, generator=gen)


def loaders(args, rank):
    labeled, unlabeled = Blobs(args.labeled, seed=1), Blobs(args.unlabeled, seed=2)
    out = []
    for ds, batch in ((labeled, args.batch_size), (unlabeled, args.batch_size * 2)):
        sampler = DistributedSampler(ds, shuffle=True, seed=args.seed, drop_last=True)
        out.append(DataLoader(ds, batch, sampler=sampler, drop_last=True))
    return out


def cycle(loader):
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


@torch.no_grad()
def mean_iou(net, dataset, rank, world):
    inter, union = torch.zeros(3), torch.zeros(3)
    for i in range(rank, len(dataset), world):
        image, mask = dataset[i]
        pred = net(image[None]).argmax(1)[0]
        for c in range(3):
            inter[c] += ((pred == c) & (mask == c)).sum()
            union[c] += ((pred == c) | (mask == c)).sum()
    dist.all_reduce(inter)
    dist.all_reduce(union)
    return (inter / union.clamp(min=1)).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=160)
    p.add_argument("--labeled", type=int, default=64)
    p.add_argument("--unlabeled", type=int, default=800)
    p.add_argument("--batch-size", type=int, default=6)
    p.add_argument("--lr", type=float, default=1.5e-3)
    p.add_argument("--consistency", type=float, default=4.0)
    p.add_argument("--rampup", type=int, default=60)
    p.add_argument("--ema-decay", type=float, default=0.97)
    p.add_argument("--seed", type=int, default=8)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(name)s: %(message)s")
    out = args.out or tempfile.mkdtemp()

    torch.manual_seed(args.seed)
    student = DistributedDataParallel(SegNet())
    teacher = MeanTeacher(student.module, args.ema_decay)
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.lr)
    labeled, unlabeled = (cycle(x) for x in loaders(args, rank))
    noise = torch.Generator().manual_seed(args.seed + 7919 * rank)
    holdout = Blobs(60, seed=3)

    for it in range(args.iterations):
        (x, y), (u, _) = next(labeled), next(unlabeled)
        target = teacher(augment(u, noise, 0.3)).softmax(1)
        logits = student(torch.cat([augment(x, noise, 0.6), augment(u, noise, 1.0)]))
        sup = F.cross_entropy(logits[: len(x)], y)
        weight = args.consistency * math.exp(-5 * (1 - min(1.0, it / args.rampup)) ** 2)
        con = F.mse_loss(logits[len(x):].softmax(1), target)
        loss = sup + weight * con
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 0:
            teacher.update(student.module)

        if it % 20 == 0:
            logger.info("it %d sup %.4f con %.5f weight %.2f", it, sup.item(), con.item(), weight)

    score = mean_iou(student.module.eval(), holdout, rank, world)
    logger.info("student mIoU %.4f", score)
    if rank == 0:
        torch.save({"student": student.module.state_dict(), "teacher": teacher.net.state_dict()},
                   os.path.join(out, "last.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
