"""Behaviour cloning of a small action policy with gradient accumulation."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from distributed import mean, setup, sync_grad, wrap

log = logging.getLogger("policy")


class Trajectories(Dataset):
    """Synthetic (observation, action) windows from a fixed linear expert."""

    def __init__(self, n, horizon, obs_dim, act_dim):
        g = torch.Generator().manual_seed(7)
        self.obs = torch.randn(n, horizon, obs_dim, generator=g)
        expert = torch.randn(obs_dim, act_dim, generator=g) / obs_dim ** 0.5
        self.act = torch.tanh(self.obs @ expert)

    def __len__(self):
        return len(self.obs)

    def __getitem__(self, i):
        return self.obs[i], self.act[i]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.n2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class Policy(nn.Module):
    def __init__(self, obs_dim, act_dim, dim, depth, heads):
        super().__init__()
        self.inp = nn.Linear(obs_dim, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.out = nn.Linear(dim, act_dim)

    def forward(self, obs):
        x = self.inp(obs)
        for b in self.blocks:
            x = b(x)
        return self.out(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--parallelism", choices=["ddp", "fsdp"], default="fsdp")
    ap.add_argument("--updates", type=int, default=30)
    ap.add_argument("--grad-accum", type=int, default=5)
    ap.add_argument("--micro-batch", type=int, default=2)
    ap.add_argument("--dim", type=int, default=320)
    ap.add_argument("--depth", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-4)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    rank, world = setup()
    torch.manual_seed(0)
    need = args.updates * args.grad_accum * args.micro_batch * world
    data = Trajectories(need, horizon=8, obs_dim=64, act_dim=14)
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler, drop_last=True)

    model = wrap(Policy(64, 14, args.dim, args.depth, 8), args.parallelism)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    update, running, t0 = 0, 0.0, time.perf_counter()
    for i, (obs, act) in enumerate(loader):
        boundary = (i + 1) % args.grad_accum == 0
        with sync_grad(model, boundary):
            loss = F.mse_loss(model(obs), act) / args.grad_accum
            loss.backward()
        running += loss.item()
        if not boundary:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        update += 1
        if update % 6 == 0:
            avg = mean(running / 6)
            dt = (time.perf_counter() - t0) / 6
            if rank == 0:
                log.info("update %d loss %.4f %.0f ms/update", update, avg, 1e3 * dt)
            running, t0 = 0.0, time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
