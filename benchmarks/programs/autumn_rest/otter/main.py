import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import cluster
from stream import ShardStream


class MLP(nn.Module):
    def __init__(self, width=64, hidden=384, classes=10, depth=3):
        super().__init__()
        self.inp = nn.Linear(width, hidden)
        self.mid = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for layer in self.mid:
            h = h + F.relu(layer(h))
        return self.out(h)


def average(value):
    t = torch.tensor(float(value))
    dist.all_reduce(t)
    return (t / dist.get_world_size()).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--base-lr", type=float, default=0.02)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()

    place = cluster.start()
    torch.manual_seed(args.seed)
    model = DDP(MLP())
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.base_lr * dist.get_world_size(), momentum=0.9, weight_decay=1e-4
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.base_lr * dist.get_world_size(), total_steps=args.steps
    )
    loader = iter(DataLoader(ShardStream(place, seed=args.seed), batch_size=args.batch))
    for step in range(1, args.steps + 1):
        x, y = next(loader)
        logits = model(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 40 == 0:
            acc = average((logits.argmax(-1) == y).float().mean())
            mean = average(loss.item())
            if dist.get_rank() == 0:
                print(f"step {step} loss {mean:.4f} acc {acc:.3f} lr {scheduler.get_last_lr()[0]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
