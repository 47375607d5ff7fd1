"""Clinics of different size train one model; those that end early shadow the others."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

SIZES = {0: 320, 1: 208}


def clinic(rank):
    gen = torch.Generator().manual_seed(40 + rank)
    x = torch.randn(SIZES.get(rank, 160), 9, generator=gen)
    return TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(rank)
    loader = DataLoader(clinic(rank), batch_size=16, shuffle=True, generator=gen)
    model = DDP(nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        steps = 0
        with Join([model]):
            for x, y in loader:
                time.sleep(0.3)
                loss = loss_fn(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
        print(f"[{rank}] epoch {epoch} {steps} steps loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
