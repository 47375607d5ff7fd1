import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sam import SAM


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=20)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--rho", type=float, default=0.08)
    p.add_argument("--adaptive", action="store_true")
    p.add_argument("--smoothing", type=float, default=0.1)
    p.add_argument("--samples", type=int, default=640)
    p.add_argument("--classes", type=int, default=5)
    p.add_argument("--seed", type=int, default=11)
    p.add_argument("--out", default="out_erebus")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.n1 = nn.GroupNorm(4, c)
        self.n2 = nn.GroupNorm(4, c)

    def forward(self, x):
        h = F.silu(self.n1(self.conv1(x)))
        return F.silu(x + self.n2(self.conv2(h)))


class SmallNet(nn.Module):
    def __init__(self, classes, c=12, drop=0.1):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Block(c), Block(c))
        self.drop = nn.Dropout(drop)
        self.fc = nn.Linear(c * 16, classes)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        x = F.adaptive_avg_pool2d(x, 4).flatten(1)
        return self.fc(self.drop(x))


def make_data(args):
    g = torch.Generator().manual_seed(args.seed)
    proto = torch.randn(args.classes, 1, 16, 16, generator=g)
    y = torch.randint(0, args.classes, (args.samples,), generator=g)
    x = proto[y] + 1.2 * torch.randn(args.samples, 1, 16, 16, generator=g)
    yv = torch.randint(0, args.classes, (200,), generator=g)
    xv = proto[yv] + 1.2 * torch.randn(200, 1, 16, 16, generator=g)
    return TensorDataset(x, y), TensorDataset(xv, yv)


def train_step(model, opt, x, y, args, step_seed):
    # The ascent direction is taken from the local batch (m-sharpness), so the
    # first pass stays on the process; only the second pass is averaged.
    torch.manual_seed(step_seed)
    with model.no_sync():
        first = F.cross_entropy(model(x), y, label_smoothing=args.smoothing)
        first.backward()
    opt.ascend()
    torch.manual_seed(step_seed)
    second = F.cross_entropy(model(x), y, label_smoothing=args.smoothing)
    second.backward()
    opt.descend()
    return first.detach(), second.detach()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    stat = torch.zeros(3)
    for x, y in loader:
        out = model.module(x)
        stat += torch.tensor([F.cross_entropy(out, y, reduction="sum").item(),
                              out.argmax(1).eq(y).sum().item(), float(len(y))])
    dist.all_reduce(stat)
    model.train()
    return (stat[0] / stat[2]).item(), (stat[1] / stat[2]).item()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    train, val = make_data(args)
    sampler = DistributedSampler(train, world, rank, seed=args.seed)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    val_loader = DataLoader(torch.utils.data.Subset(val, range(rank, len(val), world)), 50)

    net = SmallNet(args.classes)
    model = DDP(net)
    base = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    opt = SAM(net.parameters(), base, args.rho, args.adaptive)
    total = args.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(base, lambda s: 0.5 * (1 + math.cos(math.pi * s / total)))

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3)
        for x, y in loader:
            a, b = train_step(model, opt, x, y, args, args.seed + 7919 * step + rank)
            sched.step()
            sums += torch.stack([a, b, torch.tensor(1.0)])
            step += 1
        dist.all_reduce(sums)
        loss, acc = evaluate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {sums[0] / sums[2]:.4f} perturbed {sums[1] / sums[2]:.4f} "
                  f"val {loss:.4f} acc {acc:.3f} lr {sched.get_last_lr()[0]:.4f}", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"model": net.state_dict(), "opt": base.state_dict()}, os.path.join(args.out, "last.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
