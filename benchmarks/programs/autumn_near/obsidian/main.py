"""Sequence labelling; tensor parallel blocks, activations between blocks are split along the sequence."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from layers import ColumnLinear, RowLinear, on_sequence


class Block(nn.Module):
    def __init__(self, dim, span):
        super().__init__()
        self.n1 = on_sequence(nn.LayerNorm(dim))
        self.wide = ColumnLinear(dim, 2 * dim)
        self.mix = nn.Conv1d(2 * dim // dist.get_world_size(), 2 * dim // dist.get_world_size(), 3, padding=1,
                             groups=2 * dim // dist.get_world_size())
        self.narrow = RowLinear(2 * dim, dim)

    def forward(self, x):
        h = self.wide(self.n1(x))
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return x + self.narrow(F.gelu(h))


class Labeller(nn.Module):
    def __init__(self, vocab, dim, depth, span, tags):
        super().__init__()
        self.emb = on_sequence(nn.Embedding(vocab, dim))
        self.blocks = nn.ModuleList(Block(dim, span) for _ in range(depth))
        self.norm = on_sequence(nn.LayerNorm(dim))
        self.head = on_sequence(nn.Linear(dim, tags))

    def forward(self, t):
        x = self.emb(t)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def reduce_sequence_grads(net):
    for p in net.parameters():
        if getattr(p, "sequence_parallel", False):
            dist.all_reduce(p.grad)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=110)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--span", type=int, default=24)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(50)
    net = Labeller(30, args.dim, 3, args.span, 6)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(51)
    for step in range(1, args.steps + 1):
        t = torch.randint(30, (args.batch, args.span), generator=gen)
        y = (t + 2 * t.roll(1, 1) + (torch.arange(args.span) > args.span // 2)) % 6
        t, y = t.chunk(world, 1)[rank], y.chunk(world, 1)[rank]
        logits = net(t)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / (args.batch * args.span)
        opt.zero_grad()
        loss.backward()
        reduce_sequence_grads(net)
        opt.step()
        if step % 10 == 0:
            v = loss.detach().clone()
            dist.all_reduce(v)
            if rank == 0:
                print(f"step {step} loss {v.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
