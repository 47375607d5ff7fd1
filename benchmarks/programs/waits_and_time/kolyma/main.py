import argparse
import logging
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from tickets import TicketOffice

log = logging.getLogger("kolyma")


@dataclass
class Tally:
    claimed: list = field(default_factory=list)
    rows: int = 0


class Ridge(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim, 1, dtype=torch.float64))

    def forward(self, x):
        return x @ self.w


class Chunks:
    """Chunk k is made from its number, whoever asks for it; some chunks are much larger."""

    def __init__(self, count, dim, seed):
        self.count, self.dim, self.seed = count, dim, seed
        self.truth = torch.randn(dim, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def rows(self, k):
        return 4000 if k % 7 == 3 else 400

    def load(self, k):
        g = torch.Generator().manual_seed(self.seed * 1000 + k)
        x = torch.randn(self.rows(k), self.dim, dtype=torch.float64, generator=g)
        y = x @ self.truth + 0.1 * torch.randn(len(x), 1, dtype=torch.float64, generator=g)
        time.sleep(len(x) / 9000)
        return x, y


def pass_over(model, chunks, office, name):
    """Gradient and loss over all chunks; the ranks claim chunks until none is left."""
    tally = Tally()
    grad = torch.zeros_like(model.w)
    stats = torch.zeros(2, dtype=torch.float64)
    for k in office.claim(name, chunks.count):
        x, y = chunks.load(k)
        err = model(x) - y
        grad += x.T @ err.detach()
        stats += torch.tensor([float((err.detach() ** 2).sum()), float(len(x))], dtype=torch.float64)
        tally.claimed.append(k)
        tally.rows += len(x)
    dist.all_reduce(grad)
    dist.all_reduce(stats)
    return grad / stats[1], (stats[0] / stats[1]).item(), int(stats[1]), tally


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--chunks", type=int, default=24)
    ap.add_argument("--dim", type=int, default=80)
    ap.add_argument("--passes", type=int, default=5)
    ap.add_argument("--lr", type=float, default=0.7)
    ap.add_argument("--seed", type=int, default=9)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s k{rank} %(message)s")

    office = TicketOffice(_get_default_store(), rank, world)
    model = Ridge(args.dim)
    chunks = Chunks(args.chunks, args.dim, args.seed)
    expected = sum(chunks.rows(k) for k in range(args.chunks))
    for n in range(args.passes):
        grad, loss, rows, tally = pass_over(model, chunks, office, f"pass{n}")
        with torch.no_grad():
            model.w -= args.lr * grad
        log.info("pass %d claimed %d chunks, %d rows", n, len(tally.claimed), tally.rows)
        shares = [None] * world
        dist.all_gather_object(shares, tally.claimed)
        everything = sorted(k for s in shares for k in s)
        if everything != list(range(args.chunks)) or rows != expected:
            raise RuntimeError(f"chunks {everything} rows {rows}")
        if rank == 0:
            log.info("pass %d loss %.5f over %d rows", n, loss, rows)
    log.info("distance to truth %.6f", float((model.w.detach() - chunks.truth).norm()))
    office.leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
