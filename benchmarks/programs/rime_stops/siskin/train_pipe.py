import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

from schedule import OneFOneB

DIM = 256


def make_stage(rank, world, classes):
    torch.manual_seed(rank)
    mods = [nn.Linear(48, DIM)] if rank == 0 else []
    for _ in range(2):
        mods += [nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.GELU()]
    if rank == world - 1:
        mods.append(nn.Linear(DIM, classes))
    return nn.Sequential(*mods)


def dataset(n, classes):
    g = torch.Generator().manual_seed(8)
    c = torch.randn(classes, 48, generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(c[y] + 1.5 * torch.randn(n, 48, generator=g), y)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--micro", type=int, default=8)
    p.add_argument("--classes", type=int, default=10)
    p.add_argument("--lr", type=float, default=5e-4)
    args = p.parse_args()
    if args.batch_size % args.micro:
        p.error("--batch-size must be divisible by --micro")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = make_stage(rank, world, args.classes)
    opt = torch.optim.AdamW(stage.parameters(), lr=args.lr)
    loader = DataLoader(dataset(2048, args.classes), args.batch_size, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(5))
    pipe = OneFOneB(stage, rank, world, (args.batch_size // args.micro, DIM), args.micro)
    t0 = time.time()
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            total += pipe.step(x, y)
            opt.step()
        if pipe.last:
            print(f"epoch {epoch} loss {total / len(loader):.4f} {time.time() - t0:.1f}s", flush=True)
        torch.save(stage.state_dict(), f"stage_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
