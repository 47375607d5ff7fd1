"""Intent classifier with two MoE layers; every rank trains on the language files of its own shard."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from moe import BalancedMoE

LANGS, INTENTS, DIM = 6, 10, 96


class Shard:
    def __init__(self, rank, world):
        g = torch.Generator().manual_seed(17)
        self.lang = torch.randn(LANGS, 48, generator=g) * 1.5
        self.intent = torch.randn(LANGS, INTENTS, 48, generator=g)
        self.mine = torch.arange(LANGS).chunk(world)[rank]
        self.gen = torch.Generator().manual_seed(1000 + rank)

    def batch(self, n):
        l = self.mine[torch.randint(len(self.mine), (n,), generator=self.gen)]
        y = torch.randint(INTENTS, (n,), generator=self.gen)
        noise = torch.randn(n, 48, generator=self.gen)
        return self.lang[l] + self.intent[l, y] + noise, y


class Net(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.inp = nn.Linear(48, DIM)
        self.layers = nn.ModuleList(BalancedMoE(DIM, 128, experts) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, INTENTS)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--experts", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Net(args.experts))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = Shard(rank, world)
    for step in range(args.steps):
        x, y = data.batch(args.batch)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / world:.4f}", flush=True)
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        torch.save(model.module.state_dict(), "out/moe.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
