import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def make_data(n=600, dim=14):
    g = torch.Generator().manual_seed(81)
    x = torch.randn(n, dim, generator=g)
    y = (x[:, :7] * x[:, 7:]).sum(1, keepdim=True) + 0.1 * torch.randn(n, 1, generator=g)
    return TensorDataset(x, y)


def fold_indices(n, folds, index):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    held = order[index::folds]
    mask = torch.ones(n, dtype=torch.bool)
    mask[held] = False
    return order[mask[order]].tolist(), held.tolist()


def fit(model, loader, epochs, lr):
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()


@torch.no_grad()
def mse(model, loader):
    total, count = 0.0, 0
    for x, y in loader:
        total += F.mse_loss(model(x), y, reduction="sum").item()
        count += len(y)
    return total, count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--lr", type=float, default=3e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = make_data()
    train, held = fold_indices(len(data), world, rank)
    torch.manual_seed(100 + rank)
    model = nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 1))
    shuffle = torch.Generator().manual_seed(200 + rank)
    fit(model, DataLoader(Subset(data, train), batch_size=20, shuffle=True, generator=shuffle), args.epochs, args.lr)

    total, count = mse(model, DataLoader(Subset(data, held), batch_size=50))
    print(f"fold {rank}: held-out mse {total / count:.4f}", flush=True)
    sums = torch.tensor([total, float(count)])
    dist.all_reduce(sums)
    if rank == 0:
        print(f"cross-validated mse {sums[0].item() / sums[1].item():.4f} over {int(sums[1])}", flush=True)
    torch.save(model.state_dict(), f"fold{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
