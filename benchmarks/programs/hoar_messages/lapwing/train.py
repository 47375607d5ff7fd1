import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from server import Client, ParameterServer


def get_args():
    parser = argparse.ArgumentParser(description="async SGD with a parameter server on rank 0")
    parser.add_argument("--num-samples", type=int, default=250)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.02)
    return parser.parse_args()


def make_model():
    torch.manual_seed(1234)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1))


def make_dataset(n):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, x.pow(2).mean(1, keepdim=True))


def run_worker(args, rank, n_workers):
    dataset = make_dataset(args.num_samples)
    shard = Subset(dataset, range(rank - 1, len(dataset), n_workers))
    loader = DataLoader(shard, batch_size=args.batch_size, shuffle=True)
    model = make_model()
    client = Client(model)
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            model.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            client.push_pull()
            total += loss.item()
        print(f"[worker {rank}] epoch {epoch} loss {total / len(loader):.4f}", flush=True)


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        ps = ParameterServer(make_model(), args.num_samples, args.batch_size, args.epochs, args.lr, world - 1)
        served = ps.serve()
        print("[server] updates per worker:", served, flush=True)
    else:
        run_worker(args, rank, world - 1)
    dist.barrier()
    if rank == 0:
        print("training finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
