import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from grid import Grid
from net import Net


def table(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(64, 12, generator=torch.Generator().manual_seed(3))
    x = torch.randn(n, 64, generator=g)
    return TensorDataset(x, (x.abs() @ w).argmax(1))


def average_over_replicas(model, grid):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, group=grid.dp_group)
    flat /= grid.dp
    for g, piece in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))


@torch.no_grad()
def evaluate(model, loader, grid):
    model.eval()
    c = torch.zeros(2)
    for x, y in loader:
        c += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(c, group=grid.dp_group)
    model.train()
    return (c[0] / c[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tp", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--rows", type=int, default=4096)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=10)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    grid = Grid(args.tp)
    gen = torch.Generator().manual_seed(args.seed)
    model = Net(grid, gen)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    train, test = table(args.rows, 0), table(512, 1)
    sampler = DistributedSampler(train, num_replicas=grid.dp, rank=grid.dp_rank, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    test_loader = DataLoader(
        test, 64, sampler=DistributedSampler(test, num_replicas=grid.dp, rank=grid.dp_rank, shuffle=False))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(())
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            average_over_replicas(model, grid)
            opt.step()
            running += loss.detach()
        running /= len(loader) * grid.dp
        dist.all_reduce(running, group=grid.dp_group)
        acc = evaluate(model, test_loader, grid)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {running.item():.4f} acc {acc:.3f} (tp {grid.tp} dp {grid.dp})", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
