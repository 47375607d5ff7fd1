"""Sharded model with a keeper that writes the best weights so far."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_split(count, seed, noise):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=gen)
    y = torch.sin(x[:, :2]).sum(1, keepdim=True)
    level = torch.zeros(count, 1)
    level[1::2] = noise
    return TensorDataset(x, y + level * torch.randn(count, 1, generator=gen) - level * x[:, :1])


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Sequential(nn.Linear(8, 64), nn.Tanh()),
            nn.Sequential(nn.Linear(64, 64), nn.Tanh()),
            nn.Linear(64, 1),
        )


class Keeper:
    def __init__(self, path):
        self.path, self.best = path, float("inf")

    def offer(self, model, value):
        if value >= self.best:
            return False
        self.best = value
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        if dist.get_rank() == 0:
            torch.save(state, self.path)
        return True


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, rows = torch.zeros(()), 0
    for x, y in loader:
        total += ((model(x) - y) ** 2).sum()
        rows += len(x)
    model.train()
    return total / rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", default="keeper_best.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,))
    model = Net()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    train, valid = make_split(256, 1, 0.0), make_split(64, 2, 3.0)
    sampler = DistributedSampler(train, shuffle=True, seed=5)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    valid_loader = DataLoader(valid, batch_size=16, sampler=DistributedSampler(valid, shuffle=False))
    keeper = Keeper(args.out)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            time.sleep(0.2)
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        value = validate(model, valid_loader)
        dist.all_reduce(value)
        value /= world
        kept = keeper.offer(model, value.item())
        print(f"[{rank}] epoch {epoch} valid {value.item():.4f} kept {kept}", flush=True)
    dist.barrier()
    if rank == 0:
        print("size", os.path.getsize(args.out), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
