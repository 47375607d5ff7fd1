"""Ranks own different amounts of data; everyone trains until the last one is through."""
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = [22, 27, 31, 25]


def batches(rank):
    gen = torch.Generator().manual_seed(20 + rank)
    for _ in range(COUNTS[rank % len(COUNTS)]):
        x = torch.randn(16, 12, generator=gen)
        yield x, x[:, :3].sum(1, keepdim=True).sin()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(8)
    model = DDP(nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=2e-3)
    seen = 0
    with Join([model, optimizer]):
        for x, y in batches(rank):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += 1
    totals = torch.tensor([float(seen)])
    dist.all_reduce(totals)
    if rank == 0:
        print(f"{int(totals.item())} batches in all, last loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
