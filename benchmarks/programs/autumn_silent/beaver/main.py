"""Half-precision training with a sharded optimizer."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from scaler import DynamicLossScaler
from zero import ShardedAdam

log = logging.getLogger("zero")


class ResidualMLP(nn.Module):
    def __init__(self, in_dim, width, depth, out_dim, gain):
        super().__init__()
        self.inp = nn.Linear(in_dim, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, out_dim)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=gain / math.sqrt(width))

    def forward(self, x):
        h = self.inp(x)
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h)


class TeacherTask:
    def __init__(self, in_dim, out_dim, batch, seed, rank):
        gen = torch.Generator().manual_seed(seed)
        self.w1 = torch.randn(in_dim, 64, generator=gen) / in_dim ** 0.5
        self.w2 = torch.randn(64, out_dim, generator=gen) / 8
        self.batch = batch
        self.gen = torch.Generator().manual_seed(seed * 100 + rank)

    def next(self):
        x = torch.randn(self.batch, self.w1.size(0), generator=self.gen)
        return x, torch.tanh(x @ self.w1) @ self.w2


def cosine(step, total, warmup=10):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--depth", type=int, default=6)
    p.add_argument("--gain", type=float, default=1.2)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--max_norm", type=float, default=1.0)
    p.add_argument("--growth_interval", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s rank%(process)d %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)

    model = ResidualMLP(32, args.width, args.depth, 4, args.gain)
    scaler = DynamicLossScaler(growth_interval=args.growth_interval)
    optimizer = ShardedAdam(model, scaler, lr=args.lr)
    task = TeacherTask(32, 4, args.batch, args.seed, rank)

    for step in range(args.steps):
        x, y = task.next()
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x)
        loss = F.mse_loss(pred.float(), y)
        optimizer.zero_grad()
        optimizer.backward(loss)
        optimizer.inner.param_groups[0]["lr"] = args.lr * cosine(step, args.steps)
        optimizer.step(args.max_norm)
        if step % 40 == 0 or step == args.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %3d loss %.4f scale %g skipped %d", step, mean.item() / dist.get_world_size(),
                         scaler.scale, scaler.skipped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
