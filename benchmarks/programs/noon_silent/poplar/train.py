"""Per-station river records of unequal length, trained together with the join context."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(nn.Module):
    def __init__(self, channels=5, dim=96):
        super().__init__()
        self.rnn = nn.GRU(channels, dim, batch_first=True)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1]).squeeze(-1)


def station_records(station, steps=30, channels=5):
    g = torch.Generator().manual_seed(300 + station)
    w = torch.randn(channels, generator=torch.Generator().manual_seed(1))
    n = 1760 + 160 * station
    x = torch.randn(n, steps, channels, generator=g)
    decay = 0.85 ** torch.arange(steps).flip(0).float()
    y = torch.tanh((x @ w * decay).sum(1)) + 0.05 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=40)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    station = dist.get_rank()
    torch.manual_seed(20)
    model = DDP(Forecaster())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    order = torch.Generator().manual_seed(40 + station)
    loader = DataLoader(station_records(station), args.batch_size, shuffle=True, generator=order)
    for epoch in range(args.epochs):
        stat = torch.zeros(2, dtype=torch.float64)
        with Join([model], divide_by_initial_world_size=False):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                stat += torch.tensor([loss.item() * len(y), len(y)], dtype=torch.float64)
        longest = dist.get_world_size() - 1
        box = [opt.state_dict() if station == longest else None]
        dist.broadcast_object_list(box, src=longest)
        opt.load_state_dict(box[0])
        dist.all_reduce(stat)
        if station == 0:
            print(f"epoch {epoch} loss {(stat[0] / stat[1]).item():.4f} records {int(stat[1])}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
