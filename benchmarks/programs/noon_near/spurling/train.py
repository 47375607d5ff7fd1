import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from scans import ScanSlices


def stage(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU())


class SmallUNet(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.d1, self.d2, self.mid = stage(1, ch), stage(ch, 2 * ch), stage(2 * ch, 4 * ch)
        self.u2, self.u1 = stage(6 * ch, 2 * ch), stage(3 * ch, ch)
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        up = lambda t: F.interpolate(t, scale_factor=2, mode="nearest")
        return self.out(self.u1(torch.cat([a, up(self.u2(torch.cat([b, up(c)], 1)))], 1)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=9)
    ap.add_argument("--slices", type=int, default=320)
    ap.add_argument("--batch-size", type=int, default=10)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(19)
    model = DDP(SmallUNet())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = ScanSlices(args.slices)
    sampler = DistributedSampler(data, world, rank, seed=6)
    torch.manual_seed(100 + rank)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=1, persistent_workers=True,
                        drop_last=True)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for img, mask in loader:
            loss = F.binary_cross_entropy_with_logits(model(img), mask)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} bce {total.item() / (world * len(loader)):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
