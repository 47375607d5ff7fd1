"""Click model: model-parallel embedding tables under a data-parallel top network."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tables import ShardedTable

log = logging.getLogger("larch")


class Top(nn.Module):
    def __init__(self, fields, dim, dense):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, dim))
        pairs = (fields + 1) * fields // 2
        self.mlp = nn.Sequential(nn.Linear(pairs + dim, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("tri", torch.tril_indices(fields + 1, fields + 1, -1), persistent=False)

    def forward(self, emb, dense):
        d = self.bottom(dense)
        z = torch.cat([d.unsqueeze(1), emb], 1)
        inter = (z @ z.transpose(1, 2))[:, self.tri[0], self.tri[1]]
        return self.mlp(torch.cat([d, inter], 1)).squeeze(1)


def clicks(n, fields, rows, dense):
    g = torch.Generator().manual_seed(31)
    u = torch.rand(n, fields, generator=g)
    ids = (u ** 2 * rows).long()
    x = torch.randn(n, dense, generator=g)
    secret = torch.randn(fields, rows, generator=g)
    score = sum(secret[f, ids[:, f]] for f in range(fields)) + x[:, 0] - 0.5
    y = (torch.rand(n, generator=g) < score.sigmoid()).float()
    ids = ids + torch.arange(fields) * rows
    return TensorDataset(ids, x, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--fields", type=int, default=6)
    ap.add_argument("--rows", type=int, default=800)
    ap.add_argument("--dim", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    data = clicks(32_768, args.fields, args.rows, 8)
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    table = ShardedTable(args.fields * args.rows, args.dim, lr=0.12, seed=5)
    torch.manual_seed(6)
    top = DDP(Top(args.fields, args.dim, 8))
    opt = torch.optim.Adam(top.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for ids, x, y in loader:
            logit = top(table.lookup(ids), x)
            loss = F.binary_cross_entropy_with_logits(logit, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            table.apply_grads()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        log.info("epoch %d logloss %.4f", epoch, total.item() / len(loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
