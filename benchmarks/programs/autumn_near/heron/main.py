import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from tp import HeadSplitAttention, SplitMLP


class Block(nn.Module):
    def __init__(self, dim, heads, span):
        super().__init__()
        self.n1, self.att = nn.LayerNorm(dim), HeadSplitAttention(dim, heads, span)
        self.n2, self.mlp = nn.LayerNorm(dim), SplitMLP(dim, 4 * dim)

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.mlp(self.n2(x))


class Tagger(nn.Module):
    def __init__(self, vocab, dim, heads, span, depth, tags):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, span) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, tags)

    def forward(self, t):
        x = self.emb(t)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def make_batch(gen, n, span, vocab, tags):
    t = torch.randint(vocab, (n, span), generator=gen)
    return t, t.roll(1, 1) % tags


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=4e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(21)
    span, vocab, tags = 16, 20, 5
    net = Tagger(vocab, args.dim, 4, span, 2, tags)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(6)          # all members of the tensor group read the same batch
    for step in range(1, args.steps + 1):
        t, y = make_batch(gen, args.batch, span, vocab, tags)
        logits = net(t)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            acc = (logits.argmax(-1) == y).float().mean().item()
            print(f"step {step} loss {loss.item():.3f} acc {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
