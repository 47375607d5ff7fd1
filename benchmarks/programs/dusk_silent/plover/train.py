"""Megatron-style tensor + sequence parallel decoder.

    torchrun --nproc_per_node 2 train.py
"""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from layers import GatherFromSequence, ParallelLayer

logger = logging.getLogger("tp")


class _SplitSequence(torch.autograd.Function):
    """Keep this rank's part of the sequence; the parts are joined again in backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
        return torch.cat(parts, dim=1), None


class _SliceGradient(torch.autograd.Function):
    """Gather the sequence for the replicated head; every rank computes the same gradient there."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(dist.get_world_size(ctx.group), dim=1)[dist.get_rank(ctx.group)].contiguous(), None


class ParallelGPT(nn.Module):
    def __init__(self, vocab, dim, heads, layers, seq_len, group):
        super().__init__()
        self.group = group
        self.embed = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(seq_len, dim))
        self.layers = nn.ModuleList(ParallelLayer(dim, heads, group) for _ in range(layers))
        self.final_norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = _SplitSequence.apply(self.embed(ids) + self.pos, self.group)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final_norm(_SliceGradient.apply(x, self.group)))


def clip_(model, max_norm, group):
    sharded = [p for n, p in model.named_parameters() if p.dim() == 2 and n.startswith("layers.")]
    ids = {id(p) for p in sharded}
    replicated = [p for p in model.parameters() if id(p) not in ids]
    sq = sum(p.grad.pow(2).sum() for p in sharded)
    dist.all_reduce(sq, group=group)
    rep = sum(p.grad.pow(2).sum() for p in replicated)
    dist.broadcast(rep, src=0, group=group)
    total = (sq + rep).sqrt()
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(scale)
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--seq-len", type=int, default=64)
    ap.add_argument("--vocab", type=int, default=300)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=77)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    group, rank = dist.group.WORLD, dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)

    torch.manual_seed(args.seed)
    model = ParallelGPT(args.vocab, 96, 4, 3, args.seq_len, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=15)

    # all ranks belong to one tensor-parallel group and read the same batch
    data = torch.Generator().manual_seed(args.seed)
    table = torch.randint(0, args.vocab, (args.vocab, 3), generator=data)
    tick = time.time()
    for step in range(args.steps):
        ids = torch.empty(args.batch_size, args.seq_len + 1, dtype=torch.long)
        ids[:, 0] = torch.randint(0, args.vocab, (args.batch_size,), generator=data)
        for t in range(args.seq_len):
            pick = torch.randint(0, 3, (args.batch_size,), generator=data)
            ids[:, t + 1] = table[ids[:, t], pick]
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = clip_(model, 1.0, group)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            logger.info("step %d loss %.4f norm %.3f %.2fs", step, loss.item(), norm.item(), time.time() - tick)
            tick = time.time()

    out = args.out or tempfile.mkdtemp()
    torch.save(model.state_dict(), os.path.join(out, f"mp_rank_{rank:02d}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
