import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from shards import shard


def totals(model, x, y):
    with torch.no_grad():
        p = model.module(x).squeeze(1)
        t = torch.tensor([F.binary_cross_entropy_with_logits(p, y, reduction="sum"), ((p > 0) == y.bool()).sum(), len(y)])
    dist.all_reduce(t)
    return (t[0] / t[2]).item(), (t[1] / t[2]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=20)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x, y = shard(rank)
    torch.manual_seed(5)
    model = DDP(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(x, y), args.batch, shuffle=True, generator=torch.Generator().manual_seed(70 + rank))
    for epoch in range(args.epochs):
        steps = 0
        with Join([model]):
            for bx, by in loader:
                loss = F.binary_cross_entropy_with_logits(model(bx).squeeze(1), by)
                opt.zero_grad()
                loss.backward()
                opt.step()
                steps += 1
        ce, acc = totals(model, x, y)
        print(f"[{rank}] epoch {epoch} steps {steps} loss {ce:.4f} acc {acc:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
