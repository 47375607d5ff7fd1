import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tables import ShardedTables

ROWS = [40_000, 12_000, 9_000, 3_000, 700, 64, 24]


class Dense(nn.Module):
    def __init__(self, n_dense, n_tables, dim):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(n_dense, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        n = n_tables + 1
        self.register_buffer("tri", torch.tril_indices(n, n, -1), persistent=False)
        self.top = nn.Sequential(nn.Linear(dim + n * (n - 1) // 2, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense, emb):
        d = self.bottom(dense)
        z = torch.cat([d.unsqueeze(1), emb], 1)
        inter = torch.bmm(z, z.transpose(1, 2))[:, self.tri[0], self.tri[1]]
        return self.top(torch.cat([d, inter], 1)).squeeze(1)


class ClickLog:
    """Day log generated on the fly, power-law ids; a step's rows are cut over ranks."""

    def __init__(self, global_batch, rank, world, hot=3, seed=99):
        self.gb, self.rank, self.world, self.hot = global_batch, rank, world, hot
        self.gen = torch.Generator().manual_seed(seed)
        g = torch.Generator().manual_seed(1)
        self.bias = [torch.randn(r, generator=g) for r in ROWS]
        self.w = torch.randn(13, generator=g)

    def next(self):
        dense = torch.randn(self.gb, 13, generator=self.gen)
        u = torch.rand(self.gb, len(ROWS), self.hot, generator=self.gen)
        ids = torch.stack([(u[:, t].pow(3) * r).long() for t, r in enumerate(ROWS)], 1)
        logit = dense @ self.w * 0.3 + sum(self.bias[t][ids[:, t]].mean(1) for t in range(len(ROWS))) * 0.6
        label = (torch.rand(self.gb, generator=self.gen) < logit.sigmoid()).float()
        cut = slice(self.rank * self.gb // self.world, (self.rank + 1) * self.gb // self.world)
        return dense[cut], ids[cut], label[cut]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--global-batch", type=int, default=1024)
    ap.add_argument("--dim", type=int, default=24)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(7)
    tables = ShardedTables(ROWS, args.dim, seed=300)
    torch.manual_seed(8)
    dense_net = DDP(Dense(13, len(ROWS), args.dim))
    opt_dense = torch.optim.Adam(dense_net.parameters(), lr=2e-3)
    opt_tables = torch.optim.SparseAdam(list(tables.parameters()), lr=5e-3)
    log = ClickLog(args.global_batch, rank, world)

    seen, running = 0, 0.0
    for step in range(1, args.steps + 1):
        dense, ids, label = log.next()
        loss = F.binary_cross_entropy_with_logits(dense_net(dense, tables(ids)), label)
        opt_dense.zero_grad(set_to_none=True)
        opt_tables.zero_grad(set_to_none=True)
        loss.backward()
        opt_dense.step()
        opt_tables.step()
        running += loss.item()
        seen += args.global_batch
        if step % 25 == 0:
            stat = torch.tensor([running])
            dist.all_reduce(stat)
            logging.info("rows %d logloss %.6f", seen, stat.item() / world / 25)
            running = 0.0

    out = [args.out or (tempfile.mkdtemp(prefix="ctr-") if rank == 0 else None)]
    dist.broadcast_object_list(out, src=0)
    os.makedirs(out[0], exist_ok=True)
    torch.save({"place": tables.place, "tables": tables.state_dict(), "opt": opt_tables.state_dict()},
               os.path.join(out[0], f"tables-{rank:03d}-of-{world:03d}.pt"))
    if rank == 0:
        torch.save({"dense": dense_net.module.state_dict(), "opt": opt_dense.state_dict()}, os.path.join(out[0], "dense.pt"))
    dist.barrier()
    total = torch.stack([p.detach().double().square().sum() for p in tables.parameters()]).sum()
    dist.all_reduce(total)
    logging.info("tables norm %.6f", total.sqrt())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
