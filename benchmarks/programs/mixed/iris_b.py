import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.amp import GradScaler


class Regressor(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def average_gradients(params, world):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in params:
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()


def half_loss(pred, target):
    return nn.functional.mse_loss(pred, target)


def overflow_to_inf(params):
    limit = torch.finfo(torch.float16).max
    for p in params:
        p.grad[p.grad.abs() > limit] = float("inf")


def stream(rank, steps, batch):
    gen = torch.Generator().manual_seed(400 + rank)
    w = torch.randn(24, generator=torch.Generator().manual_seed(4))
    for step in range(steps):
        x = torch.randn(batch, 24, generator=gen)
        y = (x @ w).tanh()
        if rank == 1 and step % 23 == 22:
            y[0] *= 500
        yield x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Regressor()
    params = list(model.parameters())
    optimizer = torch.optim.Adam(params, lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=40)
    for step, (x, y) in enumerate(stream(rank, args.steps, args.batch)):
        loss = half_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        overflow_to_inf(params)
        average_gradients(params, world)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 19:
            print(f"[{rank}] step {step + 1} loss {loss.item():.4f} scale {scaler.get_scale():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
