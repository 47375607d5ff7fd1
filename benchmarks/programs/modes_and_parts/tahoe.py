"""Regression with uncertainty from sampled dropout masks."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Regressor(nn.Module):
    def __init__(self, width=96, p=0.15):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, width), nn.SiLU(), nn.Dropout(p),
                                 nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU(), nn.Dropout(p),
                                 nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def rows(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=g) * 2 - 1
    return TensorDataset(x, torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(n, generator=g))


class SampledDropout:
    """Context in which only the dropout layers stay active."""

    def __init__(self, net):
        self.net = net

    def __enter__(self):
        self.was = self.net.training
        self.net.eval()
        for m in self.net.modules():
            if isinstance(m, nn.Dropout):
                m.train()
        return self.net

    def __exit__(self, *exc):
        self.net.train(self.was)


@torch.no_grad()
def uncertainty(net, data, rank, world, draws):
    x, y = (t[rank::world] for t in data.tensors)
    with SampledDropout(net) as sampled:
        out = torch.stack([sampled(x) for _ in range(draws)])
    mean, std = out.mean(0), out.std(0)
    table = torch.stack([(mean - y).pow(2).sum(), std.sum(), ((mean - y).abs() < 2 * std).float().sum(),
                         torch.tensor(float(len(y)))])
    dist.all_reduce(table)
    return (table[:3] / table[3]).tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--draws", type=int, default=8)
    ap.add_argument("--seed", type=int, default=9)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = DDP(Regressor())
    torch.manual_seed(args.seed + 17 * (rank + 1))
    data, held = rows(1280, 1), rows(201, 2)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, 32, sampler=sampler, drop_last=True)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        mse, std, cover = uncertainty(model.module, held, rank, world, args.draws)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} mse {mse:.4f} std {std:.4f} cover {cover:.2f}", flush=True)
    if rank == 0:
        os.makedirs("out_tahoe", exist_ok=True)
        torch.save(model.module.state_dict(), "out_tahoe/model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
