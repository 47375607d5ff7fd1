import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stages import FirstStage, LastStage

DIM, WIDTH, CLASSES = 20, 32, 5


def dataset(n):
    g = torch.Generator().manual_seed(17)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    proto = torch.randn(CLASSES, DIM, generator=g)
    return TensorDataset(proto[y] + 0.7 * torch.randn(n, DIM, generator=g), y)


def build(rank, args):
    torch.manual_seed(30 + rank)
    if rank == 0:
        net = nn.Sequential(nn.Linear(DIM, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        return net, FirstStage(net, WIDTH, args.micro_size, args.batch_size // args.micro_size)
    net = nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    return net, LastStage(net, WIDTH, args.micro_size, args.batch_size // args.micro_size)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=784)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--micro-size", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net, stage = build(rank, args)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    order = torch.Generator()
    loader = DataLoader(dataset(args.samples), args.batch_size, shuffle=True, generator=order)
    for epoch in range(args.epochs):
        order.manual_seed(epoch)
        for i, (x, y) in enumerate(loader):
            opt.zero_grad()
            loss = stage.step(x if rank == 0 else y)
            opt.step()
            if rank == 1 and i % 8 == 0:
                print(f"epoch {epoch} batch {i} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
