"""Sensors of two sites, one process a site; one site has delivered less."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

DELIVERED = {0: 1500, 1: 1100}


class Site:
    def __init__(self, rank, seed):
        g = torch.Generator().manual_seed(seed)
        w = torch.randn(14, 2, generator=g)
        g = torch.Generator().manual_seed(seed + 1 + rank)
        self.x = torch.randn(DELIVERED.get(rank, 1000), 14, generator=g)
        self.y = torch.sin(self.x @ w / 4) + 0.05 * torch.randn(len(self.x), 2, generator=g)
        self.rank, self.seed = rank, seed

    def batches(self, size, epoch):
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(self.seed + epoch * 10 + self.rank))
        for k in range(len(order) // size):
            idx = order[k * size:(k + 1) * size]
            yield self.x[idx], self.y[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=25)
    ap.add_argument("--seed", type=int, default=51)
    ap.add_argument("--out", default="/tmp/sites.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DDP(nn.Sequential(nn.Linear(14, 48), nn.Tanh(), nn.Linear(48, 2)))
    optim = torch.optim.SGD(model.parameters(), lr=0.2)
    site = Site(rank, args.seed)
    for epoch in range(args.epochs):
        total = torch.zeros(2, dtype=torch.float64)
        with Join([model]):
            for x, y in site.batches(args.batch, epoch):
                loss = nn.functional.mse_loss(model(x), y)
                optim.zero_grad()
                loss.backward()
                optim.step()
                total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total[0] / total[1]:.4f} over {int(total[1])} batches", flush=True)
            torch.save(model.module.state_dict(), args.out)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
