"""Fine-tunes a network stage by stage: adapters first, then deeper stages thaw and warm up from zero."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Adapter(nn.Module):
    def __init__(self, dim, rank=4):
        super().__init__()
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return x + self.up(self.down(x))


class Stage(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.adapter = Adapter(dim)

    def forward(self, x):
        return self.adapter(x + self.body(x))


class Backbone(nn.Module):
    def __init__(self, dim=96, stages=3, classes=10):
        super().__init__()
        self.stem = nn.Linear(48, dim)
        self.stages = nn.ModuleList(Stage(dim) for _ in range(stages))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x)
        for s in self.stages:
            x = s(x)
        return self.head(x)


def schedule(start, warmup):
    """Zero until `start`, then a linear rise over `warmup` steps."""
    return lambda step: 0.0 if step < start else min(1.0, (step - start) / warmup)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--thaw-every", type=int, default=35)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    net = Backbone()
    for p in net.stem.parameters():
        p.requires_grad_(False)
    groups = [{"params": [p for s in net.stages for p in s.adapter.parameters()] + list(net.head.parameters())}]
    lambdas = [schedule(0, 10)]
    for i, stage in enumerate(reversed(net.stages)):
        groups.append({"params": list(stage.body.parameters()), "lr": args.lr * 0.5 ** (i + 1)})
        lambdas.append(schedule((i + 1) * args.thaw_every, 15))
    opt = torch.optim.AdamW(groups, lr=args.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambdas)
    ddp = DDP(net)
    mix = torch.randn(48, 10, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(60 + rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch, 48, generator=g)
        y = (torch.tanh(x @ mix) + 0.5 * torch.sin(x[:, :10] * 3)).argmax(1)
        loss = F.cross_entropy(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0 and rank == 0:
            rates = " ".join(f"{r:.1e}" for r in sched.get_last_lr())
            print(f"step {step} loss {loss.item():.4f} rates {rates}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
