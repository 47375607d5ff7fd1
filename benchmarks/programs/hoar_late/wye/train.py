import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dist_utils import cleanup, setup


def dataset(n=1024):
    g = torch.Generator().manual_seed(3)
    x = torch.rand(n, 2, generator=g) * 4 - 2
    label = ((x ** 2).sum(1) < 2).long()
    return TensorDataset(x, label)


def accuracy(model, ds):
    with torch.no_grad():
        x, y = ds.tensors
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser("circle classifier")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    rank, world = setup()
    torch.manual_seed(0)
    ds = dataset()
    sampler = DistributedSampler(ds, num_replicas=world, rank=rank)
    loader = DataLoader(ds, batch_size=args.batch_size, sampler=sampler)
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} acc {accuracy(net, ds):.3f}", flush=True)
    cleanup()


if __name__ == "__main__":
    main()
