"""Tagger training with dynamic batch sizes and an accumulation window that grows during training.

The objective is the mean over *tokens of the whole window on all processes*, so each micro loss is a
sum, and it is scaled with the global token count (DDP divides by the world size, hence the factor).
"""
import argparse
import contextlib
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

from batching import token_batches


class Tagger(nn.Module):
    def __init__(self, vocab=200, tags=12, dim=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, tags)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def corpus(n=1500):
    rng = random.Random(9)
    sents = []
    for _ in range(n):
        length = min(60, 3 + int(rng.expovariate(1 / 14)))
        toks = [rng.randrange(1, 200) for _ in range(length)]
        tags = [(t // 17 + (toks[i - 1] % 3 if i else 0)) % 12 for i, t in enumerate(toks)]
        sents.append((torch.tensor(toks), torch.tensor(tags)))
    return sents


def window(epoch):
    """Accumulation grows (and the learning rate does not shrink): 1, 2, 4, ..."""
    return 2 ** min(epoch, 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--budget", type=int, default=512)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sents = corpus()
    lengths = [len(s[0]) for s in sents]
    step = 0
    for epoch in range(args.epochs):
        batches = token_batches(lengths, args.budget, world, rank, epoch)
        accum, t0, seen = window(epoch), time.time(), 0
        for start in range(0, len(batches), accum):
            micro = batches[start: start + accum]            # the last window may be shorter
            tokens = torch.tensor([float(sum(lengths[i] for b in micro for i in b))])
            dist.all_reduce(tokens)
            loss_sum = 0.0
            for j, b in enumerate(micro):
                x = pad_sequence([sents[i][0] for i in b], batch_first=True)
                y = pad_sequence([sents[i][1] for i in b], batch_first=True, padding_value=-100)
                last = j == len(micro) - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
                    (loss * world / tokens.item()).backward()
                loss_sum += loss.item()
                seen += len(b)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            step += 1
            if step % 10 == 0:
                print(f"rank {rank} step {step} window {len(micro)} sizes {[len(b) for b in micro]} "
                      f"global tokens {int(tokens)} local loss sum {loss_sum:.1f}", flush=True)
        total = torch.tensor([seen])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: {int(total)} of {len(sents)} sentences, accumulation {accum}, {time.time() - t0:.1f}s", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(out, "tagger.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
