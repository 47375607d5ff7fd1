"""Two-stage language model pipeline; the token table lives on the first stage and is lent to the last.

The last stage computes with a borrowed copy of the table. After each backward pass it returns the
gradient of the copy to the first stage, which steps the table and lends it again.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Mixer(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.time = nn.Parameter(torch.randn(length, length) * 0.05)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, x):
        x = x + torch.einsum("st,btd->bsd", self.time * self.mask, self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Front(nn.Module):
    def __init__(self, vocab, dim, length):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        nn.init.normal_(self.table.weight, std=0.1)
        self.body = nn.Sequential(Mixer(dim, length), Mixer(dim, length))

    def forward(self, ids):
        return self.body(self.table(ids))


class Back(nn.Module):
    def __init__(self, vocab, dim, length):
        super().__init__()
        self.body = nn.Sequential(Mixer(dim, length), nn.LayerNorm(dim))
        self.borrowed = torch.zeros(vocab, dim, requires_grad=True)

    def forward(self, x, target):
        logits = self.body(x) @ self.borrowed.t()
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def sequences(n, length, vocab, g):
    start = torch.randint(0, vocab, (n, 1), generator=g)
    step = torch.randint(1, 5, (n, 1), generator=g)
    ids = (start + step * torch.arange(length + 1)) % vocab
    return ids[:, :-1], ids[:, 1:]


def front_loop(args, g):
    stage = Front(args.vocab, args.dim, args.length)
    opt = torch.optim.Adam(stage.parameters(), lr=args.lr)
    back_grad = torch.empty_like(stage.table.weight)
    for _ in range(args.steps):
        dist.send(stage.table.weight.data, 1)
        opt.zero_grad()
        for _ in range(args.micro):
            ids, _ = sequences(args.batch, args.length, args.vocab, g)
            h = stage(ids)
            dist.send(h.detach(), 1)
            grad = torch.empty_like(h)
            dist.recv(grad, 1)
            h.backward(grad)
        dist.recv(back_grad, 1)
        stage.table.weight.grad += back_grad
        opt.step()


def back_loop(args, g):
    stage = Back(args.vocab, args.dim, args.length)
    opt = torch.optim.Adam(stage.parameters(), lr=args.lr)
    for step in range(1, args.steps + 1):
        dist.recv(stage.borrowed.data, 0)
        stage.borrowed.grad = None
        opt.zero_grad()
        total = 0.0
        for _ in range(args.micro):
            _, target = sequences(args.batch, args.length, args.vocab, g)
            h = torch.empty(args.batch, args.length, args.dim)
            dist.recv(h, 0)
            h.requires_grad_(True)
            loss = stage(h, target) / args.micro
            loss.backward()
            dist.send(h.grad, 0)
            total += loss.item()
        dist.send(stage.borrowed.grad, 0)
        opt.step()
        if step % 20 == 0:
            print(f"step {step} loss {total:.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=140)
    ap.add_argument("--micro", type=int, default=2)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--length", type=int, default=16)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--vocab", type=int, default=80)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(40 + dist.get_rank())
    g = torch.Generator().manual_seed(6)
    (front_loop if dist.get_rank() == 0 else back_loop)(args, g)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
