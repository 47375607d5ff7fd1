"""Contrastive training in which the pairing of ranks changes from step to step."""
import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, dim=16, out=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class Partners:
    """Draws, the same way on every rank, who shares negatives with whom."""

    def __init__(self, world, seed):
        self.world = world
        self.rng = random.Random(seed)
        self.groups = {}

    def pairs(self):
        order = list(range(self.world))
        self.rng.shuffle(order)
        return [tuple(sorted(order[i:i + 2])) for i in range(0, self.world, 2)]

    def group_for(self, rank):
        chosen = None
        for pair in sorted(self.pairs()):
            group = dist.new_group(list(pair))
            if rank in pair:
                chosen = group
        return chosen


def shared_negatives(z, group):
    """Own embeddings first (with gradient), then the partner's (without)."""
    parts = [torch.empty_like(z) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, z.detach(), group=group)
    me = dist.get_group_rank(group, dist.get_rank())
    return torch.cat([z] + [p for i, p in enumerate(parts) if i != me])


def info_nce(a, b, temperature=0.2):
    logits = a @ b.t() / temperature
    return F.cross_entropy(logits, torch.arange(len(a)))


def two_views(gen, proto, size):
    base = proto[torch.randint(0, len(proto), (size,), generator=gen)]
    base = base + 0.5 * torch.randn(base.shape, generator=gen)
    return [base + 0.1 * torch.randn(base.shape, generator=gen) for _ in range(2)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(14)
    proto = torch.randn(64, 16)
    ddp = DDP(Encoder())
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    partners = Partners(world, seed=2)
    gen = torch.Generator().manual_seed(600 + rank)

    for step in range(args.steps):
        group = partners.group_for(rank)
        left, right = two_views(gen, proto, args.batch)
        za, zb = ddp(torch.cat([left, right])).chunk(2)
        loss = info_nce(za, shared_negatives(zb, group))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
