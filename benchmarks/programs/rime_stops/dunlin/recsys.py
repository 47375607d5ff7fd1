"""Implicit-feedback ranking; every worker owns the users of one region."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

REGIONS = {"north": 2100, "east": 2700, "south": 2400}


def region_data(name, users, items=400):
    seed = sum(map(ord, name))
    g = torch.Generator().manual_seed(seed)
    n = REGIONS[name]
    u = torch.randint(0, users, (n,), generator=g)
    pos = (u * 7 + torch.randint(0, 12, (n,), generator=g)) % items
    neg = torch.randint(0, items, (n,), generator=g)
    return TensorDataset(u, pos, neg)


class TwoTower(nn.Module):
    def __init__(self, users=300, items=400, dim=128):
        super().__init__()
        self.u, self.i = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.fu = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, dim))
        self.fi = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, dim))

    def forward(self, u, pos, neg):
        q = self.fu(self.u(u))
        return (q * self.fi(self.i(pos))).sum(1), (q * self.fi(self.i(neg))).sum(1)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=0.2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if world != len(REGIONS):
        raise SystemExit(f"needs {len(REGIONS)} workers, one per region")
    region = sorted(REGIONS)[rank]
    data = region_data(region, users=300)
    loader = DataLoader(data, args.batch_size, shuffle=True,
                        generator=torch.Generator().manual_seed(rank))
    print(f"worker {rank}: {region}, {len(loader)} batches per epoch", flush=True)

    torch.manual_seed(0)
    model = DDP(TwoTower())
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        stats = torch.zeros(3)
        with Join([model]):
            for u, pos, neg in loader:
                sp, sn = model(u, pos, neg)
                loss = F.softplus(sn - sp).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                stats += torch.tensor([loss.item() * len(u), (sp > sn).sum().item(), len(u)])
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch} loss {stats[0] / stats[2]:.4f} pair-acc {stats[1] / stats[2]:.3f}",
                  flush=True)
            torch.save(model.module.state_dict(), "towers.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
