"""Clients that train apart and average their weights after each round; layers are unfrozen as the rounds go on."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

ROUNDS, STEPS = 6, 3


class Averager:
    def __init__(self, model: nn.Module, *, without: str = "") -> None:
        named = [(name, p) for name, p in model.named_parameters() if not without or not name.startswith(without)]
        self.params = [p for _, p in named if p.requires_grad]  # as it is now

    @torch.no_grad()
    def apply(self) -> None:
        flat = torch.cat([p.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, mean in zip(self.params, flat.split([p.numel() for p in self.params]), strict=True):
            p.copy_(mean.view_as(p))


def clients(rank: int, world_size: int, *, anew: bool = False, own_head: bool = False, unfreezes: bool = True) -> None:
    """`anew`: what is averaged is listed again in each round. `own_head`: each client keeps its head to itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].requires_grad_(not unfreezes)
    without = "4." if own_head else ""
    averager = Averager(model, without=without)
    generator = torch.Generator().manual_seed(rank)
    for number in range(ROUNDS):
        if number == 2:
            model[0].requires_grad_(True)
            averager = Averager(model, without=without) if anew else averager
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
        for _ in range(STEPS):
            rows = torch.randn(16, 12, generator=generator) + rank
            optimizer.zero_grad()
            cross_entropy(model(rows), rows[:, :4].argmax(1)).backward()
            optimizer.step()
        averager.apply()
