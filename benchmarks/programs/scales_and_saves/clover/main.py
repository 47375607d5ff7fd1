"""Leaf-vein segmentation; the averaged weights are kept by one process and handed out when needed."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Leaves(Dataset):
    def __init__(self, n, seed, size=24):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
        slope = torch.randn(n, 1, 1, generator=g)
        off = torch.rand(n, 1, 1, generator=g) - 0.5
        self.mask = ((yy - slope * xx - off).abs() < 0.18).float()
        self.img = self.mask * 0.9 + torch.randn(n, size, size, generator=g) * 0.6

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return self.img[i][None], self.mask[i][None]


class MiniUNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        block = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(2, b), nn.ReLU())
        self.d1, self.d2, self.mid = block(1, w), block(w, 2 * w), block(2 * w, 2 * w)
        self.u1, self.out = block(3 * w, w), nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.mid(self.d2(F.max_pool2d(a, 2)))
        return self.out(self.u1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)))


class KeptAverage:
    """Lives on rank 0 only."""

    def __init__(self, model, decay):
        self.decay, self.seen = decay, 0
        self.store = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        self.seen += 1
        d = min(self.decay, (1 + self.seen) / (10 + self.seen))
        for k, v in model.state_dict().items():
            self.store[k].lerp_(v, 1 - d)


@torch.no_grad()
def hand_out(average, shadow):
    """Copy the averaged weights into `shadow` on every process."""
    for k, t in shadow.state_dict().items():
        if average is not None:
            t.copy_(average.store[k])
        dist.broadcast(t, src=0)
    return shadow


@torch.no_grad()
def dice(model, data, rank, world):
    model.eval()
    s = torch.zeros(2, dtype=torch.float64)
    img, mask = data.img[rank::world, None], data.mask[rank::world, None]
    for x, m in zip(img.split(32), mask.split(32)):
        p = (model(x) > 0).float()
        s[0] += 2 * (p * m).sum()
        s[1] += p.sum() + m.sum()
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--decay", type=float, default=0.97)
    ap.add_argument("--dir", default="veins")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(10)
    net, shadow = DDP(MiniUNet()), MiniUNet()
    average = KeptAverage(net.module, args.decay) if rank == 0 else None
    opt = torch.optim.NAdam(net.parameters(), lr=3e-3)
    train, val = Leaves(640, 1), Leaves(160, 2)
    sampler = DistributedSampler(train, seed=12)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    best = 0.0

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        net.train()
        for x, m in loader:
            loss = F.binary_cross_entropy_with_logits(net(x), m)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if average is not None:
                average.update(net.module)
        raw = dice(net.module, val, rank, world)
        smooth = dice(hand_out(average, shadow), val, rank, world)
        if smooth > best:
            best = smooth
            if rank == 0:
                os.makedirs(args.dir, exist_ok=True)
                path = os.path.join(args.dir, "best.pt")
                torch.save({"dice": smooth, "net": shadow.state_dict()}, path + "~")
                os.replace(path + "~", path)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} dice raw {raw:.3f} averaged {smooth:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
