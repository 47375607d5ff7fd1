"""Small language model with a large batch by accumulation, in the manner of nanoGPT."""
import argparse
import math
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class LM(nn.Module):
    def __init__(self, vocab=4096, dim=256, context=4):
        super().__init__()
        self.context = context
        self.tok = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.Linear(dim * context, 1024), nn.GELU(), nn.Linear(1024, dim))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx, targets):
        w = idx.unfold(1, self.context, 1)
        h = self.mix(self.tok(w).flatten(2))
        return F.cross_entropy(self.head(h).flatten(0, 1), targets.flatten())


class TokenStream:
    def __init__(self, rank, vocab=4096, length=20000):
        g = torch.Generator().manual_seed(21)
        steps = torch.randint(1, 5, (length,), generator=g)
        self.data = steps.cumsum(0) % vocab
        self.gen = torch.Generator().manual_seed(500 + rank)

    def next_batch(self, b, t, context):
        at = torch.randint(0, len(self.data) - t - context - 1, (b,), generator=self.gen)
        x = torch.stack([self.data[i:i + t + context - 1] for i in at])
        y = torch.stack([self.data[i + context:i + context + t] for i in at])
        return x, y


def lr_at(it, args):
    if it < args.warmup:
        return args.lr * (it + 1) / args.warmup
    return args.lr * 0.5 * (1 + math.cos(math.pi * (it - args.warmup) / max(1, args.iters - args.warmup)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=40)
    p.add_argument("--accum", type=int, default=6)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--block", type=int, default=12)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--warmup", type=int, default=5)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(LM())
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    stream = TokenStream(rank)
    t0 = time.time()
    for it in range(args.iters):
        for group in opt.param_groups:
            group["lr"] = 100 * lr_at(it, args)
        for micro in range(args.accum):
            x, y = stream.next_batch(args.batch, args.block, model.module.context)
            loss = model(x, y) / args.accum
            sync = micro == args.accum - 1
            with nullcontext() if sync else model.no_sync():
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if it % 10 == 9 and rank == 0:
            dt, t0 = time.time() - t0, time.time()
            print(f"iter {it + 1}: loss {loss.item() * args.accum:.3f}, {dt / 10 * 1000:.0f} ms/iter", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
