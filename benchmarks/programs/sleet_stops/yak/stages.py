import functools

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.n1(x)
        mask = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool), 1)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class First(nn.Module):
    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.word = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(layers)])

    def forward(self, ids):
        return self.blocks(self.word(ids))


class Middle(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(layers)])

    def forward(self, x):
        return self.blocks(x)


class Last(nn.Module):
    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.word = nn.Embedding(vocab, dim)

    def forward(self, x):
        return self.norm(self.blocks(x)) @ self.word.weight.t()


class Topology:
    """Which rank holds which stage, and who shares what."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.first, self.last = rank == 0, rank == size - 1

    @property
    def up(self):
        return self.rank - 1

    @property
    def down(self):
        return self.rank + 1

    @functools.cached_property
    def word_group(self):
        return dist.new_group([0, self.size - 1])

    @functools.cached_property
    def report_group(self):
        return dist.new_group()

    def holds_words(self):
        return self.first or self.last


class WordTie:
    """The input and the output embedding of the pipeline are one matrix."""

    def __init__(self, stage, topo):
        self.stage, self.topo = stage, topo
        self.live = False

    def start(self, opt):
        group = self.topo.word_group
        if self.topo.holds_words():
            dist.broadcast(self.stage.word.weight.data, 0, group=group)
            opt.state.pop(self.stage.word.weight, None)
            self.live = True

    def reduce(self):
        if self.live:
            dist.all_reduce(self.stage.word.weight.grad, group=self.topo.word_group)


def report(topo, stage, seen):
    """Gradient norms of the stages on the last rank, aside from the pipeline's own traffic."""
    norm = sum(p.grad.pow(2).sum() for p in stage.parameters() if p.grad is not None).sqrt()
    table = [torch.zeros(2) for _ in range(topo.size)]
    dist.all_gather(table, torch.tensor([norm.item(), float(seen)]), group=topo.report_group)
    return [round(t[0].item(), 3) for t in table]


def build(topo, vocab, dim, layers):
    if topo.first:
        return First(vocab, dim, layers)
    if topo.last:
        return Last(vocab, dim, layers)
    return Middle(dim, layers)
