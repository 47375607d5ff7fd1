"""Pretrains a three-stage language model, one stage per rank, on sequences of a hidden grammar."""
import argparse

import torch
import torch.distributed as dist

from stages import Pipeline, Stage


class Grammar:
    def __init__(self, vocab, seed):
        g = torch.Generator().manual_seed(1)
        self.next = torch.randint(0, vocab, (vocab, 4), generator=g)
        self.g = torch.Generator().manual_seed(seed)
        self.vocab = vocab

    def batch(self, n, length):
        ids = torch.randint(0, self.vocab, (n, 1), generator=self.g)
        for _ in range(length):
            pick = torch.randint(0, 4, (n,), generator=self.g)
            ids = torch.cat([ids, self.next[ids[:, -1], pick][:, None]], 1)
        return ids[:, :-1], ids[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--micro-batch", type=int, default=4)
    ap.add_argument("--length", type=int, default=24)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--vocab", type=int, default=128)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(30 + rank)
    stage = Stage(rank, world, args.vocab, args.dim, args.length, depth=1)
    pipe = Pipeline(stage, (args.micro_batch, args.length, args.dim))
    opt = torch.optim.AdamW(stage.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    data = Grammar(args.vocab, seed=8)
    for step in range(1, args.steps + 1):
        x, y = data.batch(args.micro * args.micro_batch, args.length)
        opt.zero_grad()
        loss = pipe.run(x.chunk(args.micro), y.chunk(args.micro))
        opt.step()
        if loss is not None and step % 20 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
