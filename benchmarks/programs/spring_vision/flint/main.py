"""DLRM-style click model: data-parallel MLPs, model-parallel embedding tables."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from clicks import ClickLog
from sharded import ShardedEmbeddings

log = logging.getLogger("dlrm")

TABLES = [4000, 2500, 1200, 800, 300, 60, 24]


def mlp(*dims):
    layers = []
    for i in range(len(dims) - 1):
        layers.append(nn.Linear(dims[i], dims[i + 1]))
        if i < len(dims) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class DenseArch(nn.Module):
    """Bottom MLP, pairwise dot interaction and top MLP."""

    def __init__(self, num_dense, num_tables, dim):
        super().__init__()
        self.bottom = mlp(num_dense, 64, dim)
        n = num_tables + 1
        self.register_buffer("pairs", torch.triu_indices(n, n, 1), persistent=False)
        self.top = mlp(dim + n * (n - 1) // 2, 64, 1)

    def forward(self, dense, emb):
        x = self.bottom(dense)
        z = torch.cat([x.unsqueeze(1), emb], 1)
        inter = torch.bmm(z, z.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, inter], 1)).squeeze(1)


@torch.no_grad()
def evaluate(model, tables, clicks, batches=8, size=256):
    gen = torch.Generator().manual_seed(99 + dist.get_rank())
    total = torch.zeros(2)
    for _ in range(batches):
        dense, ids, label = clicks.batch(size, gen)
        logits = model(dense, tables(ids))
        total[0] += F.binary_cross_entropy_with_logits(logits, label)
        total[1] += ((logits > 0).float() == label).float().mean()
    dist.all_reduce(total)
    return (total / (batches * dist.get_world_size())).tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--global-batch", type=int, default=384)
    ap.add_argument("--dim", type=int, default=16)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--embedding-lr", type=float, default=600.0)
    ap.add_argument("--eval-every", type=int, default=100)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    torch.manual_seed(17)
    clicks = ClickLog(TABLES)
    tables = ShardedEmbeddings(TABLES, args.dim)
    model = DDP(DenseArch(clicks.dense, len(TABLES), args.dim))
    dense_opt = torch.optim.Adam(model.parameters(), args.lr)
    sparse_opt = torch.optim.SGD(tables.parameters(), args.embedding_lr)
    gen = torch.Generator().manual_seed(7000 + rank)
    if rank == 0:
        log.info("tables per rank: %s", tables.counts)

    t0 = time.time()
    for step in range(1, args.steps + 1):
        dense, ids, label = clicks.batch(args.global_batch // world, gen)
        loss = F.binary_cross_entropy_with_logits(model(dense, tables(ids)), label)
        dense_opt.zero_grad()
        sparse_opt.zero_grad()
        loss.backward()
        dense_opt.step()
        sparse_opt.step()
        if step % args.eval_every == 0:
            bce, acc = evaluate(model, tables, clicks)
            if rank == 0:
                log.info("step %d loss %.4f val bce %.4f acc %.4f (%.1fs)", step, loss.item(), bce, acc,
                         time.time() - t0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
