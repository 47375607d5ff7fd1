"""Two-tower recommender: learns user vectors against fixed item features."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import catalog


class Clicks(Dataset):
    def __init__(self, count, users, items, seed):
        gen = torch.Generator().manual_seed(seed)
        self.user = torch.randint(0, users, (count,), generator=gen)
        self.item = torch.randint(0, items, (count,), generator=gen)

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        item = int(self.item[i])
        vector = catalog.features(item)
        clicked = float(vector[int(self.user[i]) % vector.numel()] > 0)
        return self.user[i], vector, torch.tensor(clicked)


class TwoTower(nn.Module):
    def __init__(self, users, dim, hidden):
        super().__init__()
        self.users = nn.Embedding(users, hidden)
        self.items = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, user, vector):
        return (self.users(user) * self.items(vector)).sum(-1) + self.bias


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--clicks", type=int, default=4000)
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--part-size", type=int, default=100)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--snapshot-every", type=int, default=2, help="epochs between two snapshots")
    parser.add_argument("--serving", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "serving"))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    catalog.fill(args.parts, args.part_size, args.dim)
    data = Clicks(args.clicks, args.users, args.parts * args.part_size, seed=8)
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=args.workers)
    model = DistributedDataParallel(TwoTower(args.users, args.dim, 48))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(args.epochs):
        if epoch % args.snapshot_every == 1 and rank == 0:
            snapshot = catalog.Snapshot(args.serving, args.part_size)
            snapshot.start()
            snapshot.begun.wait()
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for user, vector, clicked in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(user, vector), clicked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: log loss {total.item() / world / len(loader):.4f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
