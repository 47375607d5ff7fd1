"""Bracket language model on lines of very different length, grouped by length bucket."""
import argparse
import math
import random
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PAIRS = ["()", "[]", "{}"]
VOCAB = ["<pad>", "<bos>", "<eos>"] + [c for p in PAIRS for c in p]
INDEX = {c: i for i, c in enumerate(VOCAB)}
IGNORE = -100


def dyck(rng, limit):
    out, stack = [], []
    while len(out) < limit:
        if stack and (rng.random() < 0.5 or len(stack) > 6):
            out.append(stack.pop()[1])
        else:
            p = rng.choice(PAIRS)
            out.append(p[0])
            stack.append(p)
    return out + [p[1] for p in reversed(stack)]


class BucketedLines:
    """Every process gets its own lengths in a step: one short batch, one long batch, and so on."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.lines = sorted((dyck(rng, rng.randint(4, 60)) for _ in range(n)), key=len)

    def epoch(self, epoch, batch, rank, world):
        order = list(range(len(self.lines) // batch))
        random.Random(1000 + epoch).shuffle(order)
        usable = len(order) // world * world
        for b in order[rank:usable:world]:
            yield self.collate(self.lines[b * batch:(b + 1) * batch])

    @staticmethod
    def collate(lines):
        width = max(map(len, lines)) + 1
        x = torch.zeros(len(lines), width, dtype=torch.long)
        y = torch.full((len(lines), width), IGNORE)
        for r, line in enumerate(lines):
            ids = [INDEX[c] for c in line]
            x[r, :len(ids) + 1] = torch.tensor([1] + ids)
            y[r, :len(ids) + 1] = torch.tensor(ids + [2])
        return x, y


class BracketLM(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB), width, padding_idx=0)
        self.rnn = nn.LSTM(width, 2 * width, batch_first=True)
        self.out = nn.Linear(2 * width, len(VOCAB))

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def nll_sum(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE, reduction="sum")


@torch.no_grad()
def perplexity(model, data, rank, world):
    model.eval()
    s = torch.zeros(2, dtype=torch.float64)
    for x, y in data.epoch(0, 16, rank, world):
        s[0] += nll_sum(model(x), y)
        s[1] += (y != IGNORE).sum()
    dist.all_reduce(s)
    model.train()
    return math.exp(s[0] / s[1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--ckpt", type=Path, default=Path("bracket.pt"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    model = DDP(BracketLM())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train, held_out = BucketedLines(512, 1), BucketedLines(128, 2)

    for epoch in range(args.epochs):
        batches = list(train.epoch(epoch, args.batch, rank, world))
        seen = torch.zeros(2, dtype=torch.float64)
        for at in range(0, len(batches), args.accum):
            group = batches[at:at + args.accum]
            tokens = torch.tensor(float(sum((y != IGNORE).sum().item() for _, y in group)))
            seen[1] += tokens
            dist.all_reduce(tokens)
            for i, (x, y) in enumerate(group):
                model.require_backward_grad_sync = i == len(group) - 1
                loss = nll_sum(model(x), y)
                seen[0] += loss.item()
                # the wrapper divides by the number of processes
                (loss * world / tokens).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        dist.all_reduce(seen)
        ppl = perplexity(model.module, held_out, rank, world)
        if rank == 0:
            print(f"epoch {epoch}: nll/token {seen[0] / seen[1]:.4f}, held-out ppl {ppl:.3f}", flush=True)
            torch.save(model.module.state_dict(), args.ckpt)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
