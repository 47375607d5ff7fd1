"""Deep residual MLP language model on n-gram context; Muon for the matrices, AdamW for the rest."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors as flatten, _unflatten_dense_tensors as unflatten

from muon import DistributedMuon

log = logging.getLogger("dunlin")


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))).square())


class ContextLM(nn.Module):
    def __init__(self, vocab, dim, depth, context):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim // context)
        self.blocks = nn.Sequential(*[Residual(dim) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)

    def forward(self, ctx):
        return self.head(self.norm(self.blocks(self.emb(ctx).flatten(1))))


def examples(n, vocab, context):
    g = torch.Generator().manual_seed(44)
    h = torch.randint(0, vocab, (vocab, vocab), generator=g)
    seq = torch.randint(0, vocab, (n, context + 1), generator=g)
    clean = h[seq[:, context - 3], seq[:, context - 1]]
    seq[:, context] = torch.where(torch.rand(n, generator=g) < 0.9, clean, seq[:, context])
    return seq[:, :context], seq[:, context]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--global-batch", type=int, default=512)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--muon-lr", type=float, default=0.01)
    ap.add_argument("--adam-lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    vocab, context = 24, 4
    x, y = examples(16_384, vocab, context)
    torch.manual_seed(12)
    model = ContextLM(vocab, args.dim, args.depth, context)
    matrices = [p for n, p in model.named_parameters() if n.startswith("blocks") and p.ndim == 2]
    ids = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in ids]
    muon = DistributedMuon(matrices, lr=args.muon_lr)
    adam = torch.optim.AdamW(others, lr=args.adam_lr, weight_decay=0.01)
    total_steps, step = args.epochs * (len(x) // args.global_batch), 0

    for epoch in range(args.epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(600 + epoch))
        total, n = torch.zeros(()), 0
        for batch in order.split(args.global_batch):
            idx = batch[rank::world]
            loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            grads = [p.grad for p in others]
            flat = flatten(grads)
            work = dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)
            muon.scale_lr(min(1.0, 2 * (1 - step / total_steps)), args.muon_lr)
            muon.step()
            work.wait()
            for p, g in zip(others, unflatten(flat, grads)):
                p.grad = g
            adam.step()
            adam.zero_grad(set_to_none=True)
            total += loss.detach()
            n += 1
            step += 1
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        log.info("epoch %d loss %.4f", epoch, total.item() / n)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
