import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh())
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        return self.head(self.body(x))


def shard_batches(rank, epoch, base=30):
    gen = torch.Generator().manual_seed(1000 * epoch + rank)
    for _ in range(base + 2 * rank):
        x = torch.randn(16, 10, generator=gen)
        yield x, (x[:, 0] > x[:, 1]).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=3e-3)
    for epoch in range(args.epochs):
        done = 0
        with Join([model, optimizer]):
            for x, y in shard_batches(rank, epoch):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += 1
        counts = [None] * world
        dist.all_gather_object(counts, done)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} batches {counts}", flush=True)

    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        print("optimizer entries", len(optimizer.state_dict()["state"]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
