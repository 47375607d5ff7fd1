"""Music tagger: a deep MLP-mixer cut over the ranks, micro-batches between them."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pipe import Schedule

log = logging.getLogger("tagger")
DIM, TAGS = 64, 10


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.f = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.f(self.norm(x))


def cut(rank, size, depth):
    blocks = [Mixer(DIM) for _ in range(depth // size)]
    if rank == 0:
        blocks.insert(0, nn.Linear(40, DIM))
    if rank == size - 1:
        blocks.append(nn.Linear(DIM, TAGS))
    return nn.Sequential(*blocks)


def tracks(n):
    g = torch.Generator().manual_seed(8)
    x = torch.randn(n, 40, generator=g)
    w = torch.randn(40, TAGS, generator=g)
    return TensorDataset(x, (x @ w + torch.randn(n, TAGS, generator=g) > 1.0).float())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--tracks", type=int, default=1000)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--micro", type=int, default=16)
    ap.add_argument("--depth", type=int, default=6)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank + 1)
    module = cut(rank, size, a.depth)
    opt = torch.optim.Adam(module.parameters(), lr=1e-3)
    schedule = Schedule(module, rank, size, DIM, a.micro)
    # every rank walks the same order; the ends take what they need of a batch
    order = torch.Generator().manual_seed(17)
    loader = DataLoader(tracks(a.tracks), a.batch, shuffle=True, generator=order)
    count = math.ceil(a.batch / a.micro)
    for epoch in range(a.epochs):
        seen, total = 0, 0.0
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            total += schedule.run(x, y, count, nn.functional.binary_cross_entropy_with_logits)
            opt.step()
            seen += 1
        if rank == size - 1:
            log.info("epoch %d: %d batches, loss %.4f", epoch, seen, total / seen)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
