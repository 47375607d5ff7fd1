"""DDP classifier; the averaged model lives and is judged on the first rank only."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import Shapes
from ema import WeightAverage, timed


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 4))


def augment(x, gen):
    flip = torch.rand(len(x), generator=gen) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(-1), x)
    return x + 0.1 * torch.randn(x.shape, generator=gen)


@torch.no_grad()
def accuracy(model, loader):
    right = total = 0
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return right / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--decay", type=float, default=0.98)
    ap.add_argument("--seed", type=int, default=2)
    ap.add_argument("--out", default="runs/nutmeg")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    main_rank = rank == 0
    torch.manual_seed(args.seed)
    model = DDP(network())
    ema = WeightAverage(model.module, args.decay) if main_rank else None
    torch.manual_seed(args.seed + 1 + rank)
    gen = torch.Generator().manual_seed(args.seed + 500 + rank)

    train = Shapes(1200, seed=10)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    held = DataLoader(Shapes(600, seed=11), batch_size=100) if main_rank else None
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader), pct_start=0.2)

    best, clock = 0.0, {}
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        tally = torch.zeros(2)
        with timed("train", clock):
            for x, y in loader:
                loss = F.cross_entropy(model(augment(x, gen)), y)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                sched.step()
                tally += torch.tensor([loss.item() * len(y), float(len(y))])
                if main_rank:
                    ema.update(model.module)
        dist.all_reduce(tally)
        if main_rank:
            with timed("judge", clock):
                model.module.eval()
                raw, avg = accuracy(model.module, held), accuracy(ema.shadow, held)
            print(f"epoch {epoch} loss {(tally[0] / tally[1]).item():.4f} raw {raw:.3f} averaged {avg:.3f}", flush=True)
            if avg > best:
                best = avg
                os.makedirs(args.out, exist_ok=True)
                torch.save({"model": model.module.state_dict(), "ema": ema.state_dict(), "opt": opt.state_dict(),
                            "epoch": epoch}, os.path.join(args.out, "best.pt"))
        dist.barrier()

    if main_rank:
        print("best averaged", round(best, 3), {k: round(v, 2) for k, v in clock.items()}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
