import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from mappings import gather_sequence, reduce_scatter_sequence


def mark_sequence_parallel(module):
    for p in module.parameters():
        p.sequence_parallel = True
    return module


class ParallelMLP(nn.Module):
    """Column-parallel up projection, row-parallel down projection."""

    def __init__(self, width, hidden, tp):
        super().__init__()
        assert hidden % tp == 0
        self.up = nn.Linear(width, hidden // tp)
        self.down = nn.Linear(hidden // tp, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))
        self.bias.sequence_parallel = True

    def forward(self, x):
        h = F.gelu(self.up(gather_sequence(x)))
        return reduce_scatter_sequence(self.down(h)) + self.bias


class Layer(nn.Module):
    def __init__(self, width, hidden, tp):
        super().__init__()
        self.norm = mark_sequence_parallel(nn.LayerNorm(width))
        self.mlp = ParallelMLP(width, hidden, tp)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Tagger(nn.Module):
    def __init__(self, vocab, tags, width, hidden, depth, tp):
        super().__init__()
        self.embed = mark_sequence_parallel(nn.Embedding(vocab, width))
        self.layers = nn.ModuleList(Layer(width, hidden, tp) for _ in range(depth))
        self.final_norm = nn.LayerNorm(width)
        self.head = mark_sequence_parallel(nn.Linear(width, tags))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final_norm(x))


def seed_everything(model, seed):
    """Same values for what is replicated, own values for what is split."""
    rank = dist.get_rank()
    for i, p in enumerate(model.parameters()):
        split = p.dim() > 0 and is_split(model, p)
        g = torch.Generator().manual_seed(seed + i + (1000 * (rank + 1) if split else 0))
        if p.dim() > 1:
            with torch.no_grad():
                p.normal_(0, 0.1, generator=g)
        elif split:
            nn.init.zeros_(p)


def is_split(model, param):
    return any(param is q for l in model.layers
               for q in (l.mlp.up.weight, l.mlp.up.bias, l.mlp.down.weight))


def finalize_grads(model):
    grads = [p.grad for p in model.parameters() if getattr(p, "sequence_parallel", False)]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    offset = 0
    for g in grads:
        g.copy_(flat[offset:offset + g.numel()].view_as(g))
        offset += g.numel()
