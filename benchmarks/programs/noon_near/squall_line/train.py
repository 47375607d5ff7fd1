import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def textures(n, classes=8, size=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    grid = torch.arange(size).float()
    angle = y.float() * 3.1416 / classes
    wave = torch.cos(0.9 * (torch.cos(angle)[:, None, None] * grid[None, :, None]
                            + torch.sin(angle)[:, None, None] * grid[None, None, :]))
    x = wave.unsqueeze(1).repeat(1, 3, 1, 1) + 1.2 * torch.randn(n, 3, size, size, generator=g)
    return TensorDataset(x, y)


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.n1 = nn.GroupNorm(8, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.n2 = nn.GroupNorm(8, cout)
        self.short = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.n1(self.conv1(x)))
        return F.relu(self.n2(self.conv2(y)) + self.short(x))


def make_net(classes=8):
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), BasicBlock(16, 32, 2), BasicBlock(32, 64, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class Ema:
    def __init__(self, model, decay=0.95):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


class EarlyStopper:
    def __init__(self, ema, dataset, patience):
        self.ema, self.patience = ema, patience
        self.loader = DataLoader(dataset, batch_size=128)
        self.best, self.bad = float("inf"), 0

    @torch.no_grad()
    def should_stop(self):
        total = count = 0
        for x, y in self.loader:
            total += F.cross_entropy(self.ema.module(x), y, reduction="sum").item()
            count += len(y)
        value = total / count
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--eval-interval", type=int, default=25)
    ap.add_argument("--patience", type=int, default=80)
    ap.add_argument("--lr", type=float, default=0.03)
    return ap.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(31)
    net = make_net()
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
    train = textures(1600, seed=1)
    sampler = DistributedSampler(train, world, rank, seed=12)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    ema = Ema(net)
    stopper = EarlyStopper(ema, textures(512, seed=2), args.patience) if rank == 0 else None
    stop = torch.zeros(1)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            ema.update(net)
            step += 1
            if step % args.eval_interval == 0:
                if rank == 0:
                    stop.fill_(float(stopper.should_stop()))
                dist.broadcast(stop, src=0)
            if stop.item():
                break
        if rank == 0:
            print(f"epoch {epoch} step {step} train {loss.item():.4f} best val {stopper.best:.4f}", flush=True)
        if stop.item():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
