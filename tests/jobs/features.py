"""Losses over the features of all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel


@torch.no_grad()
def gather_all(rows: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows)
    return torch.cat(parts)


def contrastive(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    keys = gather_all(keys)
    scores = queries @ keys.T / 0.2
    targets = torch.arange(len(queries))  # of the first rank
    return cross_entropy(scores, targets)


def contrastive_shifted(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    keys = gather_all(keys)
    scores = queries @ keys.T / 0.2
    targets = torch.arange(len(queries)) + len(queries) * dist.get_rank()
    return cross_entropy(scores, targets)


def compared(rank: int, world_size: int, *, shifted: bool = False) -> None:
    """Two views of each row, of which the second one is gathered."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(12):
        rows = torch.randn(16, 8, generator=generator)
        queries = normalize(model(rows), dim=1)
        with torch.no_grad():
            keys = normalize(model.module(rows + 0.1 * torch.randn(16, 8, generator=generator)), dim=1)
        loss = contrastive_shifted(queries, keys) if shifted else contrastive(queries, keys)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
