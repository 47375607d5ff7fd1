"""Energy demand by site: one worker per region reads its own meter files."""
import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def region(number, rows, seed):
    """Region `number`: warm ones use less and vary less."""
    g = torch.Generator().manual_seed(seed + 101 * number)
    temp = 12 + 6 * number + 5 * torch.randn(rows, generator=g)
    hour = torch.randint(0, 24, (rows,), generator=g).float()
    people = torch.rand(rows, generator=g) * 3
    load = 60 - 1.7 * temp + 9 * people + 6 * torch.sin(hour / 24 * 6.2832) + 2 * torch.randn(rows, generator=g)
    return torch.stack([temp, hour, people], 1), load


class Standardizer:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    @classmethod
    def fit(cls, values):
        values = values.double()
        n = torch.tensor([float(len(values))], dtype=torch.float64)
        moments = torch.cat([n, values.sum(0).reshape(-1), values.pow(2).sum(0).reshape(-1)])
        k = (len(moments) - 1) // 2
        mean = moments[1:k + 1] / moments[0]
        var = moments[k + 1:] / moments[0] - mean ** 2
        return cls(mean.float(), var.clamp_min(1e-12).sqrt().float())

    def __call__(self, v):
        return (v - self.mean) / self.std

    def inverse(self, v):
        return v * self.std + self.mean

    def dump(self):
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}


def network(width):
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--rows", type=int, default=960)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--seed", type=int, default=40)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    x, y = region(rank, args.rows, args.seed)
    cut = int(0.8 * args.rows)
    x_scale = Standardizer.fit(x[:cut])
    y_scale = Standardizer.fit(y[:cut, None])
    model = DDP(network(48))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    order = torch.Generator().manual_seed(args.seed + 7 * rank)

    for epoch in range(args.epochs):
        model.train()
        tally = torch.zeros(4)
        for rows in torch.randperm(cut, generator=order).split(args.batch_size):
            loss = F.mse_loss(model(x_scale(x[rows])), y_scale(y[rows, None]))
            opt.zero_grad()
            loss.backward()
            opt.step()
            tally[:2] += torch.tensor([loss.item() * len(rows), float(len(rows))])
        model.eval()
        with torch.no_grad():
            pred = y_scale.inverse(model(x_scale(x[cut:])))
            tally[2:] = torch.stack([(pred - y[cut:, None]).abs().sum(), torch.tensor(float(len(pred)))])
        dist.all_reduce(tally)
        if rank == 0:
            print(f"epoch {epoch} train {tally[0] / tally[1]:.4f} val MAE {tally[2] / tally[3]:.3f} kWh", flush=True)

    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), args.out / "demand.pt")
        (args.out / "scales.json").write_text(json.dumps({"x": x_scale.dump(), "y": y_scale.dump()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
