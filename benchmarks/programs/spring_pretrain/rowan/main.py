"""GPT pretraining over pipeline stages with a micro-batch ramp-up."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from comm import PipeComm
from schedule import train_batch

logger = logging.getLogger("pp")


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class Stage(nn.Module):
    def __init__(self, args, rank, size):
        super().__init__()
        self.is_first, self.is_last = rank == 0, rank == size - 1
        if self.is_first:
            self.tok = nn.Embedding(args.vocab, args.dim)
            self.pos = nn.Parameter(0.02 * torch.randn(args.seq_len, args.dim))
        self.layers = nn.Sequential(*[Layer(args.dim, 4) for _ in range(args.layers // size)])
        if self.is_last:
            self.norm = nn.LayerNorm(args.dim)
            self.head = nn.Linear(args.dim, args.vocab, bias=False)

    def forward(self, x, labels):
        if self.is_first:
            x = self.tok(x) + self.pos
        x = self.layers(x)
        if self.is_last:
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())
        return x


class MicroBatchCalculator:
    def __init__(self, start, target, every):
        self.start, self.target, self.every = start, target, every

    def __call__(self, step):
        return min(self.target, self.start * 2 ** (step // self.every))


def make_micro_batches(num, args, gen):
    out = []
    for _ in range(num):
        base = torch.randint(0, args.vocab, (args.micro_batch, 1), generator=gen)
        stride = torch.randint(1, 4, (args.micro_batch, 1), generator=gen)
        seq = (base + stride * torch.arange(args.seq_len + 1)) % args.vocab
        out.append({"tokens": seq[:, :-1], "labels": seq[:, 1:]})
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--ramp-every", type=int, default=40)
    p.add_argument("--num-micro", type=int, nargs=2, default=[1, 4])
    p.add_argument("--micro-batch", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=64)
    p.add_argument("--vocab", type=int, default=96)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s")

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1234 + rank)
    stage = Stage(args, rank, size)
    opt = torch.optim.AdamW(stage.parameters(), lr=args.lr, betas=(0.9, 0.95))
    comm = PipeComm((args.micro_batch, args.seq_len, args.dim))
    num_micro = MicroBatchCalculator(*args.num_micro, args.ramp_every)
    gen = torch.Generator().manual_seed(99)  # all stages read the same stream

    start = time.time()
    for step in range(args.steps):
        n = num_micro(step)
        losses = train_batch(stage, make_micro_batches(n, args, gen), comm)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if stage.is_last and step % 10 == 0:
            logger.info("step %4d | micro-batches %d | loss %.4f | %.1fs", step, n,
                        torch.stack(losses).mean().item(), time.time() - start)
    dist.barrier()
    if stage.is_last:
        logger.info("finished %d steps in %.1fs", args.steps, time.time() - start)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
