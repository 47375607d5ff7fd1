"""Baselines per plant: each process fits the model of its own plant on its own readings.

The plants measure in different units and share nothing; the processes only
meet at the end to print one table.
"""
import argparse
import os
import tempfile
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Plant(NamedTuple):
    name: str
    offset: float
    spread: float
    seed: int


def plant_of(rank, seed):
    names = ["north", "south", "harbour", "quarry"]
    return Plant(f"{names[rank % 4]}-{rank}", 20.0 * (rank + 1), 3.0 ** (rank + 1), seed + 71 * rank)


def readings(plant, count, features=10):
    gen = torch.Generator().manual_seed(plant.seed)
    z = torch.randn(count, features, generator=gen)
    w = torch.randn(features, 1, generator=gen) / features ** 0.5
    y = torch.sin(z @ w) + 0.3 * z[:, :1] + 0.1 * torch.randn(count, 1, generator=gen)
    return plant.offset + plant.spread * z, plant.offset - plant.spread * y


class Scaler(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.register_buffer("mean", rows.mean(0))
        self.register_buffer("std", rows.std(0).clamp(min=1e-6))

    def forward(self, rows):
        return (rows - self.mean) / self.std

    def undo(self, rows):
        return rows * self.std + self.mean


class PlantModel(nn.Module):
    def __init__(self, x, y):
        super().__init__()
        self.x_scale, self.y_scale = Scaler(x), Scaler(y)
        self.net = nn.Sequential(nn.Linear(x.size(1), 64), nn.Tanh(), nn.Dropout(0.05), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(self.x_scale(x))

    def predict(self, x):
        return self.y_scale.undo(self(x))


def fit(args, plant, rank):
    x, y = readings(plant, 1200)
    train, held = slice(0, 960), slice(960, None)
    torch.manual_seed(plant.seed)
    model = PlantModel(x[train], y[train])
    loader = DataLoader(
        TensorDataset(x[train], y[train]),
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(plant.seed + 1),
    )
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for bx, by in loader:
            loss = (model(bx) - model.y_scale(by)).pow(2).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"[{plant.name}] epoch {epoch} loss {total / len(loader):.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        err = (model.predict(x[held]) - y[held]).abs().mean().item()
        naive = (y[train].mean() - y[held]).abs().mean().item()
    torch.save(model.state_dict(), os.path.join(args.out, f"plant_{plant.name}.pt"))
    return {"plant": plant.name, "mae": err, "naive": naive}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--seed", type=int, default=2)
    ap.add_argument("--out", default=tempfile.gettempdir())
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    row = fit(args, plant_of(rank, args.seed), rank)
    table = [None] * world
    dist.all_gather_object(table, row)
    if rank == 0:
        for r in table:
            print(f"{r['plant']:<12} mae {r['mae']:9.3f}   mean-only {r['naive']:9.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
