import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from probe import diagnose


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class Forecaster(nn.Module):
    def __init__(self, features=12, dim=64, layers=3, heads=4, horizon=4):
        super().__init__()
        self.embed = nn.Linear(features, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, horizon)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


class Stream:
    def __init__(self, rank, batch, length=32, features=12, horizon=4):
        self.gen = torch.Generator().manual_seed(100 + rank)
        self.w = torch.randn(features, horizon, generator=torch.Generator().manual_seed(0))
        self.batch, self.length, self.features = batch, length, features

    def next(self):
        x = torch.randn(self.batch, self.length, self.features, generator=self.gen).cumsum(1) * 0.3
        y = torch.tanh(x[:, -4:].mean(1) @ self.w)
        return x, y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=104)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--diagnose-every", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Forecaster())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train = Stream(rank, args.batch)
    probe_batches = [Stream(900, args.batch).next() for _ in range(2)]

    t0 = time.perf_counter()
    for step in range(1, args.steps + 1):
        x, y = train.next()
        loss = nn.functional.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.diagnose_every == 0 and rank == 0:
            stats = diagnose(model.module, probe_batches)
            widest = max(stats, key=lambda k: stats[k]["std"])
            now = time.perf_counter()
            print(
                f"step {step:4d} loss {loss.item():.4f} widest {widest} std {stats[widest]['std']:.2f} "
                f"p99 {stats[widest]['p99']:.2f} {(now - t0) / args.diagnose_every * 1e3:.0f} ms/step",
                flush=True,
            )
            t0 = now
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
