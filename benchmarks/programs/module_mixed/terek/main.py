"""Cross-validation in parallel: rank k holds fold k out; folds share nothing but the final scores."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

GRID = [(3e-3, 0.0), (1e-2, 0.0), (1e-2, 1e-2)]
EPOCHS, BATCH = 3, 24


def table(n=360):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, 10, generator=g)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * torch.randn(n, generator=g) > 0).long()
    return TensorDataset(x, y)


def folds(n, k):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(77))
    return [part.tolist() for part in order.chunk(k)]


def fit(train, lr, decay, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=decay)
    loader = DataLoader(train, batch_size=BATCH, shuffle=True)
    best, patience = float("inf"), 0
    for _ in range(EPOCHS):
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        patience = 0 if total < best else patience + 1
        best = min(best, total)
        if patience:
            break
    return net


@torch.no_grad()
def score(net, held_out):
    x, y = next(iter(DataLoader(held_out, batch_size=len(held_out))))
    return (net(x).argmax(1) == y).float().mean().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = table()
    parts = folds(len(data), world)
    held_out = Subset(data, parts[rank])
    train = Subset(data, [i for k, p in enumerate(parts) if k != rank for i in p])
    mine = [score(fit(train, lr, wd, seed=rank), held_out) for lr, wd in GRID]
    every = [None] * world
    dist.all_gather_object(every, mine)
    if rank == 0:
        for (lr, wd), column in zip(GRID, zip(*every)):
            print(f"lr {lr} decay {wd}: {sum(column) / world:.3f} over {world} folds", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
