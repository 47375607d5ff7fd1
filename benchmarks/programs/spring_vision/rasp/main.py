"""Segmentation of images of several aspect ratios, batches grouped by ratio."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from group_by_aspect_ratio import GroupedBatchSampler, create_groups
from runner import LogHook, LrHook, Runner, SamplerSeedHook

SHAPES = [(24, 48), (32, 40), (32, 32), (40, 32), (48, 24)]


class MixedShapes(Dataset):
    def __init__(self, n=1203, seed=4):
        g = torch.Generator().manual_seed(seed)
        self.kind = torch.multinomial(torch.tensor([0.1, 0.25, 0.3, 0.25, 0.1]), n, replacement=True, generator=g)

    def __len__(self):
        return len(self.kind)

    def ratio(self, i):
        h, w = SHAPES[self.kind[i]]
        return w / h

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(10_000 + i)
        h, w = SHAPES[self.kind[i]]
        yy, xx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        mask = torch.zeros(h, w, dtype=torch.long)
        img = 0.4 * torch.randn(3, h, w, generator=g)
        for c in (1, 2, 3):
            cy, cx = (torch.rand(2, generator=g) * torch.tensor([h, w])).tolist()
            r = 3 + 5 * torch.rand(1, generator=g).item()
            inside = (yy - cy) ** 2 + (xx - cx) ** 2 < r * r
            mask[inside] = c
            img[:, inside] += torch.tensor([0.9, -0.6, 0.3]).roll(c).unsqueeze(1)
        return img, mask


class MiniFCN(nn.Module):
    def __init__(self, classes=4, w=16):
        super().__init__()
        def block(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.GroupNorm(4, o), nn.ReLU(inplace=True))
        self.stem, self.down = block(3, w, 1), block(w, 2 * w, 2)
        self.mid, self.aux, self.cls = block(2 * w, 2 * w, 1), nn.Conv2d(2 * w, classes, 1), nn.Conv2d(3 * w, classes, 1)

    def forward(self, images, targets):
        a = self.stem(images)
        d = self.down(a)
        b = self.mid(d)
        up = F.interpolate(b, a.shape[-2:], mode="nearest")
        aux = F.interpolate(self.aux(d), a.shape[-2:], mode="nearest")
        return {"loss": F.cross_entropy(self.cls(torch.cat([a, up], 1)), targets),
                "loss_aux": 0.4 * F.cross_entropy(aux, targets)}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    torch.manual_seed(0)

    data = MixedShapes()
    groups = create_groups([data.ratio(i) for i in range(len(data))], k=4)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_sampler=GroupedBatchSampler(sampler, groups, args.batch_size))
    model = DDP(MiniFCN())
    opt = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.epochs * len(loader), power=0.9)
    Runner(model, loader, opt, [SamplerSeedHook(), LrHook(sched), LogHook()]).run(args.epochs)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
