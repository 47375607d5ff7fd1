import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from search import Study


def objective(trial, epochs, x, y):
    torch.manual_seed(trial.number)
    model = DDP(nn.Sequential(nn.Linear(8, trial.width), nn.ReLU(), nn.Linear(trial.width, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=trial.lr, momentum=0.9)
    curve = []
    for _ in range(epochs):
        mean = torch.zeros(1)
        for xb, yb in zip(x.split(32), y.split(32)):
            loss = nn.functional.mse_loss(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            mean += loss.detach() / (len(x) / 32)
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        curve.append(mean.item())
        if not torch.isfinite(mean):
            break
    return curve[-1], curve


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--lrs", type=float, nargs="+", default=[0.001, 0.01, 0.05, 3.0, 50.0])
    ap.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(rank)
    x = torch.randn(320, 8, generator=g)
    y = x[:, :2].sum(1, keepdim=True) ** 2 / 2
    study = Study(args.lrs, args.widths)
    for trial in study.trials:
        value, curve = objective(trial, args.epochs, x, y)
        study.tell(trial, value, curve)
        if rank == 0:
            print(f"trial {trial.number} lr={trial.lr} width={trial.width}: {trial.state} {value:.4g} after {len(curve)} epochs", flush=True)
    if rank == 0:
        print("best:", study.best.number, f"{study.best.value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
