import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from compress import OneBitReducer


class ConvNet(nn.Module):
    def __init__(self, width=24, classes=8):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.c1 = nn.Conv2d(width, width, 3, padding=1, stride=2)
        self.c2 = nn.Conv2d(width, 2 * width, 3, padding=1, stride=2)
        self.n1, self.n2 = nn.GroupNorm(4, width), nn.GroupNorm(4, 2 * width)
        self.fc = nn.Linear(2 * width * 16, classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.n1(self.c1(x)))
        x = F.relu(self.n2(self.c2(x)))
        return self.fc(x.flatten(1))


def gratings(n, classes, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    ang = y.float() / classes * torch.pi
    ph = torch.rand(n, generator=g) * 6.28
    grid = torch.linspace(-1, 1, 16)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    wave = torch.sin(7 * (ang.cos()[:, None, None] * xx + ang.sin()[:, None, None] * yy) + ph[:, None, None])
    return (wave + 0.9 * torch.randn(n, 16, 16, generator=g)).unsqueeze(1), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--dense-steps", type=int, default=20)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(2)
    model = ConvNet()
    data = TensorDataset(*gratings(3072, 8, 1))
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    reducer = OneBitReducer(model.parameters(), args.dense_steps)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            reducer.reduce()
            opt.step()
            sched.step()
            total += torch.tensor([loss.item() * len(y), len(y)])
        dist.all_reduce(total)
        kept = torch.stack([m.norm() for m in reducer.memory]).norm()
        logging.info("epoch %d loss %.4f residual %.4f sent %.2f MB", epoch, total[0] / total[1], kept, reducer.bytes_out / 2 ** 20)

    xt, yt = gratings(800, 8, 50)
    with torch.no_grad():
        acc = (model(xt).argmax(1) == yt).float().mean()
    logging.info("test accuracy %.4f", acc)
    lo = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    hi = lo.clone()
    dist.all_reduce(lo, op=dist.ReduceOp.MIN)
    dist.all_reduce(hi, op=dist.ReduceOp.MAX)
    logging.info("largest gap between workers %.3g", (hi - lo).abs().max())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
