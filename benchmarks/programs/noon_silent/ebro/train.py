"""Character model with tensor and sequence parallel blocks."""
import argparse
import math

import numpy as np
import torch
import torch.distributed as dist

from layers import GPT
from mappings import allreduce_sequence_parallel_grads


class MarkovCorpus:
    def __init__(self, vocab, length=200_000, seed=3):
        rng = np.random.RandomState(seed)
        table = rng.randint(0, vocab, (vocab, vocab, 3))
        out = np.zeros(length, dtype=np.int64)
        pick = rng.randint(0, 3, length)
        for i in range(2, length):
            out[i] = table[out[i - 1], out[i - 2] % 8, pick[i]]
        self.data = torch.from_numpy(out)
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, size, seq_len):
        start = torch.randint(0, len(self.data) - seq_len - 1, (size,), generator=self.gen)
        rows = torch.stack([self.data[s:s + seq_len + 1] for s in start.tolist()])
        return rows[:, :-1], rows[:, 1:]


def lr_at(step, total, peak, warmup=10):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--vocab", type=int, default=48)
    ap.add_argument("--seq-len", type=int, default=128)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(11)
    model = GPT(args.vocab, args.seq_len)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    corpus = MarkovCorpus(args.vocab)

    for step in range(args.steps):
        for g in opt.param_groups:
            g["lr"] = lr_at(step, args.steps, args.lr)
        ids, labels = corpus.batch(args.batch, args.seq_len)
        loss = model(ids, labels)
        opt.zero_grad()
        loss.backward()
        allreduce_sequence_parallel_grads(model)
        opt.step()
        if step % 10 == 0 or step == args.steps - 1:
            total = loss.detach().clone()
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print(f"step {step} loss {total.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
