import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sam import SAM


class Mixer(nn.Module):
    def __init__(self, tokens=16, patch=16, dim=64, depth=3, classes=10):
        super().__init__()
        self.embed = nn.Linear(patch, dim)
        self.tok = nn.ModuleList(nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens)) for _ in range(depth))
        self.chan = nn.ModuleList(nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim)) for _ in range(depth))
        self.n1 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.n2 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = x.unfold(1, 4, 4).unfold(2, 4, 4).reshape(len(x), 16, 16)
        x = self.embed(x)
        for a, b, n, m in zip(self.tok, self.chan, self.n1, self.n2):
            x = x + a(n(x).transpose(1, 2)).transpose(1, 2)
            x = x + b(m(x))
        return self.head(x.mean(1))


def images(n, seed, noise=0.7, flip=0.1):
    protos = torch.randn(10, 16, 16, generator=torch.Generator().manual_seed(8))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    x = protos[y] * (0.4 + torch.rand(n, 1, 1, generator=g)) + noise * torch.randn(n, 16, 16, generator=g)
    wrong = torch.rand(n, generator=g) < flip
    return x, torch.where(wrong, torch.randint(0, 10, (n,), generator=g), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--rho", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(3)
    model = DDP(Mixer())
    base = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    sam = SAM(model, base, rho=args.rho)
    data = TensorDataset(*images(4096, 1))
    sampler = DistributedSampler(data, shuffle=True, seed=9)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(base, args.lr, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        stats = torch.zeros(3)
        for x, y in loader:
            at, up = sam.step(lambda: F.cross_entropy(model(x), y, label_smoothing=0.1))
            sched.step()
            stats += torch.tensor([at.item(), up.item() - at.item(), 1.0])
        dist.all_reduce(stats)
        logging.info("epoch %d loss %.4f sharpness %.5f", epoch, stats[0] / stats[2], stats[1] / stats[2])
    xt, yt = images(1000, 2, flip=0.0)
    with torch.no_grad():
        right = (model.module(xt[rank::world]).argmax(1) == yt[rank::world]).sum()
    dist.all_reduce(right)
    logging.info("accuracy %.4f", right / len(xt))
    sums = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum().reshape(1)
    every = [torch.zeros_like(sums) for _ in range(world)]
    dist.all_gather(every, sums)
    logging.info("weight sums %s", [s.item() for s in every])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
