"""Character LSTM, data parallel by hand: average the gradients with one all_reduce per step.

The learning rate belongs to the mean loss of the whole batch (world * micro_batch * accum rows),
so --accum trades memory for time and leaves the training as it is.
"""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 40


class CharLSTM(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


class Corpus:
    """Second-order Markov text; each rank reads its own rows."""

    def __init__(self, rank, seq):
        g = torch.Generator().manual_seed(5)
        self.table = torch.randint(VOCAB, (VOCAB, 4), generator=g)
        self.gen = torch.Generator().manual_seed(50 + rank)
        self.seq = seq

    def rows(self, n):
        ids = torch.empty(n, self.seq + 1, dtype=torch.long)
        ids[:, 0] = torch.randint(VOCAB, (n,), generator=self.gen)
        for t in range(self.seq):
            pick = torch.multinomial(torch.tensor([.7, .2, .07, .03]), n, True, generator=self.gen)
            ids[:, t + 1] = self.table[ids[:, t], pick]
        return ids[:, :-1], ids[:, 1:]


def average_gradients(params, world):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= world
    for p, piece in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(piece.view_as(p))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--micro-batch", type=int, default=4)
    ap.add_argument("--accum", type=int, default=8)
    ap.add_argument("--lr", type=float, default=4.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = CharLSTM()
    params = list(model.parameters())
    for p in params:
        dist.broadcast(p.data, 0)
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9)
    corpus = Corpus(rank, 24)
    for step in range(args.steps):
        for group in opt.param_groups:
            group["lr"] = args.lr * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        opt.zero_grad()
        shown = torch.zeros(())
        for _ in range(args.accum):
            x, y = corpus.rows(args.micro_batch)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / args.accum).backward()
            shown += loss.detach() / args.accum
        average_gradients(params, world)
        opt.step()
        if step % 10 == 0:
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step:3d} loss {shown.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
