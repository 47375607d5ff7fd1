# %% [markdown]
# Load forecasting, exported from a notebook

# %%
import math
import os
import sys
from argparse import ArgumentParser

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

# %%
parser = ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--horizon", type=int, default=12)
parser.add_argument("--resume", type=str, default="")
parser.add_argument("--seed", type=int, default=2024)
parser.add_argument("--dir", type=str, default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "models"))
opt = parser.parse_args()


# %%
def windows(n, length, horizon, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + horizon).float()
    daily = torch.rand(n, 1, generator=g) * 2 * math.pi
    weekly = torch.rand(n, 1, generator=g) * 2 * math.pi
    amp = 0.5 + torch.rand(n, 1, generator=g)
    y = amp * torch.sin(2 * math.pi * t / 24 + daily) + 0.4 * torch.sin(2 * math.pi * t / 168 + weekly)
    y = y + 0.05 * torch.randn(y.shape, generator=g)
    return TensorDataset(y[:, :length], y[:, length:])


class Forecaster(nn.Module):
    def __init__(self, length=96, horizon=12, width=128, depth=4):
        super().__init__()
        self.inp = nn.Linear(length, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth))
        self.out = nn.Linear(width, horizon)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return self.out(h)


# %%
def save_checkpoint(path, model, optimizer, epoch, best):
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "best": best}
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)


def load_weights(net, path):
    ckpt = torch.load(path, map_location="cpu")
    net.load_state_dict(ckpt["model"])
    return ckpt


@torch.no_grad()
def rmse(model, loader):
    model.eval()
    s = torch.zeros(2)
    for x, y in loader:
        s += torch.tensor([(model(x) - y).pow(2).sum().item(), y.numel()])
    dist.all_reduce(s)
    model.train()
    return math.sqrt(s[0] / s[1])


# %%
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(opt.seed)
    train, test = windows(6400, 96, opt.horizon, 0), windows(640, 96, opt.horizon, 1)
    sampler = DistributedSampler(train, seed=opt.seed, drop_last=True)
    train_loader = DataLoader(train, opt.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test, opt.batch_size, sampler=DistributedSampler(test, shuffle=False))

    net = Forecaster(horizon=opt.horizon)
    start, best, ckpt = 0, float("inf"), None
    if opt.resume:
        ckpt = load_weights(net, os.path.join(opt.dir, opt.resume))
        start, best = ckpt["epoch"] + 1, ckpt["best"]
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr)
    if ckpt is not None:
        optimizer.load_state_dict(ckpt["optimizer"])
        if rank == 0:
            print(f"continuing at epoch {start}, best so far {best:.4f}", flush=True)

    loss_fn = nn.HuberLoss()
    for epoch in range(start, opt.epochs):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            if rank == 0 and i % 20 == 0:
                print(f"{epoch}:{i} {loss.item():.5f}", file=sys.stderr, flush=True)
        score = rmse(model, test_loader)
        best = min(best, score)
        if rank == 0:
            os.makedirs(opt.dir, exist_ok=True)
            save_checkpoint(os.path.join(opt.dir, "last.ckpt"), model, optimizer, epoch, best)
            print(f"epoch {epoch} test rmse {score:.4f} best {best:.4f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


# %%
if __name__ == "__main__":
    main()
