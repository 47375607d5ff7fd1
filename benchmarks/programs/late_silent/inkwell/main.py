"""Deep bagging: each process trains one ensemble member on its own bootstrap sample."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def concrete(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=g)
    mean = 4 * x[:, 0] - 3 * x[:, 1] ** 2 + torch.sin(6 * x[:, 2]) + x[:, 3] * x[:, 4]
    return x, mean + (0.1 + 0.4 * x[:, 5]) * torch.randn(n, generator=g)


class Member(nn.Module):
    """Gaussian regression (mean and log-variance)."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        mu, logvar = self.head(self.body(x)).unbind(1)
        return mu, logvar.clamp(-6, 3)


def nll(mu, logvar, y):
    return 0.5 * (logvar + (y - mu) ** 2 / logvar.exp()).mean()


def train_member(args, number, x, y):
    torch.manual_seed(args.seed * 1000 + number)
    bag = torch.randint(0, len(x), (len(x),))
    member = Member(args.width)
    opt = torch.optim.Adam(member.parameters(), lr=4e-3)
    last = 0.0
    for epoch in range(args.epochs):
        for rows in bag[torch.randperm(len(bag))].split(args.batch):
            loss = nll(*member(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            last = loss.item()
    return member, len(bag.unique()) / len(x), last


@torch.no_grad()
def ensemble_predict(member, x, world):
    mu, logvar = member(x)
    m = torch.stack([mu, mu ** 2 + logvar.exp()])
    dist.all_reduce(m)
    m /= world
    return m[0], m[1] - m[0] ** 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--width", type=int, default=48)
    ap.add_argument("--seed", type=int, default=17)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = concrete(1536, args.seed)
    xv, yv = concrete(400, args.seed + 1)

    member, distinct, last = train_member(args, rank, x, y)
    with torch.no_grad():
        own = F.mse_loss(member(xv)[0], yv)
    info = [None] * world
    dist.all_gather_object(info, {"member": rank, "distinct": round(distinct, 3), "last": round(last, 3), "mse": round(own.item(), 4)})
    mean, var = ensemble_predict(member, xv, world)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(member.state_dict(), args.out / f"member{rank:02d}.pt")
    if rank == 0:
        for row in info:
            print(row)
        print(f"ensemble mse {F.mse_loss(mean, yv):.4f} mean sd {var.sqrt().mean():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
