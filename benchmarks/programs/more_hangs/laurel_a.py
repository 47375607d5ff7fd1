"""Tokenise once into a cache folder, then train from the cache."""
import argparse
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def leader_first(rank):
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


class TokenCache:
    def __init__(self, folder, rank, items):
        self.path = Path(folder) / "tokens.pt"
        self.rank = rank
        self.items = items

    def _build(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        g = torch.Generator().manual_seed(77)
        time.sleep(0.4)
        draft = self.path.with_suffix(".draft")
        torch.save(torch.randint(0, 90, (self.items, 12), generator=g), draft)
        draft.rename(self.path)

    def load(self):
        if not self.path.exists():
            with leader_first(self.rank):
                if not self.path.exists():
                    self._build()
        return torch.load(self.path)


class Manifest:
    def __init__(self, rank, entries):
        self.names = []
        for e in range(entries * (1 + 4 * rank)):
            time.sleep(0.01)
            self.names.append(f"part-{rank}-{e}")


class Lm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(90, 24)
        self.out = nn.Linear(24, 90)

    def forward(self, ids):
        return self.out(self.emb(ids).cumsum(1))


def wipe(folder, rank):
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cache", default="token_cache")
    p.add_argument("--items", type=int, default=256)
    p.add_argument("--entries", type=int, default=40)
    p.add_argument("--steps", type=int, default=16)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    wipe(a.cache, rank)
    manifest = Manifest(rank, a.entries)
    tokens = TokenCache(a.cache, rank, a.items).load()[rank::world]
    print(f"rank {rank}: {len(manifest.names)} parts, {len(tokens)} rows", flush=True)
    torch.manual_seed(0)
    net = DistributedDataParallel(Lm())
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for s in range(a.steps):
        batch = tokens[(s * 8) % len(tokens):][:8]
        logits = net(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 90), batch[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        print(f"loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
