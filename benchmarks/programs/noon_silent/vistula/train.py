"""Decentralised SGD on a ring: each worker mixes weights with its two neighbours."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ConvNet(nn.Module):
    def __init__(self, classes=6, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, width * 2, 3, padding=1), nn.GroupNorm(4, width * 2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(width * 2 * 16, classes),
        )

    def forward(self, x):
        return self.net(x)


class RingMixer:
    def __init__(self, model):
        self.params = list(model.parameters())
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left, self.right = (self.rank - 1) % self.world, (self.rank + 1) % self.world

    def flat(self):
        return torch.cat([p.detach().reshape(-1) for p in self.params])

    @torch.no_grad()
    def write(self, vec):
        offset = 0
        for p in self.params:
            p.copy_(vec[offset:offset + p.numel()].view_as(p))
            offset += p.numel()

    def mix(self):
        mine = self.flat()
        from_left, from_right = torch.empty_like(mine), torch.empty_like(mine)
        ops = [
            dist.P2POp(dist.isend, mine, self.right, tag=1), dist.P2POp(dist.irecv, from_left, self.left, tag=1),
            dist.P2POp(dist.isend, mine, self.left, tag=2), dist.P2POp(dist.irecv, from_right, self.right, tag=2),
        ]
        for req in dist.batch_isend_irecv(ops):
            req.wait()
        self.write((mine + from_left + from_right) / 3)

    def consensus(self):
        mine = self.flat()
        dist.all_reduce(mine)
        self.write(mine / self.world)

    def spread(self):
        mine = self.flat()
        mean = mine.clone()
        dist.all_reduce(mean)
        gap = (mine - mean / self.world).norm()
        dist.all_reduce(gap, op=dist.ReduceOp.MAX)
        return gap.item()


def make_images(n, classes=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(classes, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    proto = F.interpolate(coarse, scale_factor=4)
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(proto[y] + torch.randn(n, 1, 16, 16, generator=g), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = ConvNet()
    mixer = RingMixer(model)
    ds, val = make_images(3840, seed=1), make_images(600, seed=2)
    sampler = DistributedSampler(ds, shuffle=True, drop_last=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            mixer.mix()
        spread = mixer.spread()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} spread {spread:.4f}", flush=True)
    mixer.consensus()
    with torch.no_grad():
        share = slice(dist.get_rank(), None, dist.get_world_size())
        x, y = (t[share] for t in val.tensors)
        hits = torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float64)
    dist.all_reduce(hits)
    if dist.get_rank() == 0:
        print(f"consensus acc {(hits[0] / hits[1]).item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
