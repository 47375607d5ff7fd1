"""Mixed-precision sequence tagger with a sharded optimizer."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from zero import ShardedAdamW

log = logging.getLogger("kestrel")


class Tagger(nn.Module):
    def __init__(self, vocab, dim, tags):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(5 * dim, 2 * dim)
        self.deep = nn.Linear(2 * dim, 2 * dim)
        self.norm = nn.LayerNorm(2 * dim)
        self.out = nn.Linear(2 * dim, tags)

    def forward(self, x):
        e = F.pad(self.emb(x), (0, 0, 2, 2))
        h = torch.cat([e[:, i : i + x.shape[1]] for i in range(5)], dim=-1)
        h = F.gelu(self.mix(h))
        h = h + F.gelu(self.deep(self.norm(h)))
        return self.out(h).float()


def corpus(n, length=24, vocab=200, tags=9):
    g = torch.Generator().manual_seed(8)
    x = torch.randint(0, vocab, (n, length), generator=g)
    kind = torch.randint(0, 6, (vocab,), generator=g)
    k = F.pad(kind[x], (1, 1))
    rule = torch.randint(0, tags, (6, 6, 6), generator=g)
    return TensorDataset(x, rule[k[:, :-2], k[:, 1:-1], k[:, 2:]])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    data = corpus(2048)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    torch.manual_seed(3)
    model = Tagger(200, 48, 9)
    opt = ShardedAdamW(model.parameters(), lr=args.lr)
    assert len(loader) % args.accum == 0

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            opt.accumulate()
            total += loss.detach()
            if (i + 1) % args.accum == 0:
                norm = opt.step(args.accum)
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        log.info("epoch %d loss %.4f last norm %.3f", epoch, total.item() / len(loader), norm.item())

    out = args.out or os.path.join(tempfile.gettempdir(), f"kestrel-{os.environ.get('MASTER_PORT', '0')}")
    os.makedirs(out, exist_ok=True)
    torch.save({"rank": rank, "world": world, "step": opt.t, "master": opt.master, "m": opt.m, "v": opt.v},
               os.path.join(out, f"optim_{rank}.pt"))
    if rank == 0:
        torch.save({k: v.clone() for k, v in model.state_dict().items()}, os.path.join(out, "model_bf16.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
