"""Tensor-parallel training of a small multi-query transformer."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from layers import Block

log = logging.getLogger("tp")


class ParallelGPT(nn.Module):
    def __init__(self, vocab, dim, heads, depth, seq_len):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(seq_len, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class CopyTask:
    """Sequences whose second half repeats the first; all tensor-parallel ranks read the same batches."""

    def __init__(self, vocab, seq_len, batch, seed):
        self.vocab, self.half, self.batch = vocab, seq_len // 2, batch
        self.gen = torch.Generator().manual_seed(seed)

    def next(self):
        first = torch.randint(0, self.vocab, (self.batch, self.half), generator=self.gen)
        ids = torch.cat([first, first], dim=1)
        return ids[:, :-1], ids[:, 1:]


def clip_grad_norm(params, max_norm):
    sharded = sum((p.grad.pow(2).sum() for p in params if getattr(p, "tensor_parallel", False)), torch.zeros(()))
    replicated = sum((p.grad.pow(2).sum() for p in params if not getattr(p, "tensor_parallel", False)), torch.zeros(()))
    stats = torch.stack([sharded, replicated / dist.get_world_size()])
    dist.all_reduce(stats)
    norm = stats.sum().sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(scale)
    return norm


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=32)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--seq_len", type=int, default=32)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=7)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(args.seed)
    model = ParallelGPT(args.vocab, args.dim, args.heads, args.depth, args.seq_len)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps)
    task = CopyTask(args.vocab, args.seq_len, args.batch, args.seed + 1)

    start = time.time()
    for step in range(args.steps):
        inputs, targets = task.next()
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = clip_grad_norm(params, 1.0)
        optimizer.step()
        scheduler.step()
        if rank == 0 and step % 20 == 0:
            log.info("step %3d loss %.4f norm %.3f %.1fs", step, loss.item(), norm.item(), time.time() - start)
    if rank == 0:
        log.info("final loss %.4f", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
