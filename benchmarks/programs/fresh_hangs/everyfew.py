"""Local SGD: ranks walk alone for some steps and average their weights now and then."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def average(model, world):
    with torch.no_grad():
        flat = nn.utils.parameters_to_vector(model.parameters())
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world, model.parameters())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--period", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(400, 10, generator=gen)
    data = TensorDataset(x, (x[:, :2] * x[:, 2:4]).sum(1, keepdim=True))
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    model = nn.Sequential(nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for rows, target in loader:
            # the second machine is older
            time.sleep(0.25 + 0.1 * rank)
            loss = ((model(rows) - target) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.period == 0:
                average(model, world)
        print(f"[{rank}] epoch {epoch} loss {loss.item():.3f}", flush=True)
    average(model, world)
    if rank == 0:
        torch.save(model.state_dict(), "everyfew_model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
