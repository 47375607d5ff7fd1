"""Small GPT pretraining loop. Run with torchrun."""
import argparse
import contextlib
import math
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig

parser = argparse.ArgumentParser()
parser.add_argument("--max-iters", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--grad-accum", type=int, default=16, help="micro steps summed over all processes")
parser.add_argument("--lr", type=float, default=6e-4)
parser.add_argument("--min-lr", type=float, default=6e-5)
parser.add_argument("--warmup-iters", type=int, default=4)
parser.add_argument("--grad-clip", type=float, default=1.0)
parser.add_argument("--log-interval", type=int, default=2)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
master = rank == 0
assert args.grad_accum % world_size == 0
micro_steps = args.grad_accum // world_size
torch.manual_seed(1337 + rank)

cfg = GPTConfig()
tokens_per_iter = args.grad_accum * args.batch_size * cfg.block_size
if master:
    print(f"tokens per iteration: {tokens_per_iter:,}")


def synth_corpus(n, vocab, seed=11):
    rng = np.random.default_rng(seed)
    follow = rng.integers(0, vocab, size=(vocab, 4))
    out = np.empty(n, dtype=np.int64)
    out[0] = 0
    choice = rng.integers(0, 4, size=n)
    for i in range(1, n):
        out[i] = follow[out[i - 1], choice[i]]
    return torch.from_numpy(out)


data = synth_corpus(60_000, cfg.vocab_size)


def get_batch():
    ix = torch.randint(len(data) - cfg.block_size - 1, (args.batch_size,))
    x = torch.stack([data[i : i + cfg.block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + cfg.block_size] for i in ix])
    return x, y


def get_lr(it):
    if it < args.warmup_iters:
        return args.lr * (it + 1) / args.warmup_iters
    ratio = (it - args.warmup_iters) / max(1, args.max_iters - args.warmup_iters)
    return args.min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (args.lr - args.min_lr)


class Accumulator:
    """Runs the micro steps of one iteration and leaves the averaged gradient on the model."""

    def __init__(self, model, micro_steps):
        self.model = model
        self.micro_steps = micro_steps

    def grad_ctx(self, last):
        return contextlib.nullcontext() if last else self.model.no_sync()

    def run(self):
        total = 0.0
        for micro_step in range(self.micro_steps):
            x, y = get_batch()
            loss = self.model(x, y) / self.micro_steps
            with self.grad_ctx(micro_step == self.micro_steps - 1):
                loss.backward()
            total += loss.item()
        return total


model = DDP(GPT(cfg), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
accumulator = Accumulator(model, micro_steps)

t0 = time.time()
for it in range(args.max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    loss = accumulator.run()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    dt, t0 = time.time() - t0, time.time()
    if master and it % args.log_interval == 0:
        print(f"iter {it}: loss {loss:.4f}, time {dt * 1000:.0f}ms, tok/s {tokens_per_iter / dt:,.0f}", flush=True)

dist.destroy_process_group()
