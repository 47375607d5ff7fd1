import torch
import torch.nn.functional as F
from torch import nn

from exchange import exchange, swap_counts


class Expert(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, width), nn.Linear(width, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


class ExpertParallel(nn.Module):
    """Top-1 routing; each rank owns a few experts and receives the tokens for them."""

    def __init__(self, cfg, rank, world):
        super().__init__()
        self.local, self.total = cfg.experts_per_rank, cfg.experts_per_rank * world
        self.world = world
        self.router = nn.Linear(cfg.dim, self.total, bias=False)
        with torch.random.fork_rng():
            torch.manual_seed(300 + rank)
            self.experts = nn.ModuleList(Expert(cfg.dim, cfg.width) for _ in range(self.local))

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gate, choice = probs.max(-1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=self.total)
        send = counts.view(self.world, self.local)
        recv = swap_counts(send)
        rows = exchange(x[order], send.sum(1).tolist(), recv.sum(1).tolist())
        owner = torch.cat([torch.arange(self.local).repeat_interleave(recv[r]) for r in range(self.world)])
        out = torch.zeros_like(rows)
        for k, expert in enumerate(self.experts):
            pick = (owner == k).nonzero().squeeze(-1)
            out = out.index_add(0, pick, expert(rows[pick]))
        back = exchange(out, recv.sum(1).tolist(), send.sum(1).tolist())
        y = torch.zeros_like(x).index_copy(0, order, back) * gate[:, None]
        share = counts.float() / len(x)
        balance = self.total * (share * probs.mean(0)).sum()
        return x + y, balance


class SparseNet(nn.Module):
    def __init__(self, cfg, rank, world):
        super().__init__()
        self.inp = nn.Linear(cfg.dim, cfg.dim)
        self.moe = ExpertParallel(cfg, rank, world)
        self.norm = nn.LayerNorm(cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.classes)

    def forward(self, x):
        h, balance = self.moe(torch.tanh(self.inp(x)))
        return self.out(self.norm(h)), balance
