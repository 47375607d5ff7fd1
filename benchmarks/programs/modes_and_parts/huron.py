"""Price model on tabular rows; keeps the weights that do best over the held-out branches."""
import argparse
import copy
import json
import os
from dataclasses import dataclass, asdict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Settings:
    features: int = 20
    hidden: int = 112
    epochs: int = 14
    batch: int = 16
    lr: float = 4e-3
    patience: int = 4
    seed: int = 6


# rows held by each held-out branch
BRANCHES = {"lyon": 350, "brest": 40, "lille": 260, "metz": 22}


def truth(x, tilt):
    return x[:, 0] * 1.5 - x[:, 1] + torch.sin(2 * x[:, 2]) + tilt * x[:, 3]


def train_rows(s):
    g = torch.Generator().manual_seed(21)
    x = torch.randn(384, s.features, generator=g)
    y = truth(x, 0.4) + 0.7 * torch.randn(384, generator=g)
    return TensorDataset(x, y)


def branch_rows(s, name):
    k = list(BRANCHES).index(name)
    g = torch.Generator().manual_seed(300 + k)
    x = torch.randn(BRANCHES[name], s.features, generator=g)
    tilt = 1.6 if name in ("brest", "metz") else 0.0
    return x, truth(x, tilt)


class PriceNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(s.features, s.hidden), nn.GELU(),
                                  nn.Linear(s.hidden, s.hidden), nn.GELU(), nn.Linear(s.hidden, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


@torch.no_grad()
def validate(net, s, rank, world):
    net.eval()
    names = list(BRANCHES)[rank::world]
    err, rows = 0.0, 0
    for name in names:
        x, y = branch_rows(s, name)
        for xb, yb in zip(x.split(64), y.split(64)):
            err += F.mse_loss(net(xb), yb, reduction="sum").item()
            rows += len(yb)
    pair = torch.tensor([err, rows], dtype=torch.float64)
    dist.all_reduce(pair)
    net.train()
    return (pair[0] / pair[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out_huron")
    out = ap.parse_args().out
    s = Settings()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(s.seed)
    model = DDP(PriceNet(s))
    rows = train_rows(s)
    sampler = DistributedSampler(rows, world, rank, shuffle=True, seed=s.seed)
    loader = DataLoader(rows, s.batch, sampler=sampler)
    opt = torch.optim.Adam(model.parameters(), lr=s.lr)

    best, best_epoch, best_state, waited = float("inf"), -1, None, 0
    for epoch in range(s.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
        val = validate(model.module, s, rank, world)
        if val < best:
            best, best_epoch, waited = val, epoch, 0
            best_state = copy.deepcopy(model.module.state_dict())
        else:
            waited += 1
        if rank == 0:
            print(f"epoch {epoch:2d} train {total / len(loader):.4f} val {val:.4f} best {best_epoch}", flush=True)
        if waited >= s.patience:
            break
    if rank == 0:
        os.makedirs(out, exist_ok=True)
        torch.save(best_state, os.path.join(out, "best.pt"))
        with open(os.path.join(out, "run.json"), "w") as f:
            json.dump({"best": best, "epoch": best_epoch, **asdict(s)}, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
