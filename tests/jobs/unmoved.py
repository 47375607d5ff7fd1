"""Parameters that get gradients and do not move, and those that only look so."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 72


def trained(
    rank: int,
    world_size: int,
    *,
    dtype: torch.dtype = torch.float32,
    rate: float = 1e-3,
    body_rate: float | None = None,
    autocast: bool = False,
    by_batch: bool = False,
) -> None:
    """A norm between two layers. `body_rate`: the first layer is a group of its own, at this rate. `by_batch`: a norm that takes
    the bias before it out again, whose gradient is but rounding, and plain descent."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(32) if by_batch else nn.LayerNorm(32)
    net = nn.Sequential(nn.Linear(12, 32), norm, nn.ReLU(), nn.Linear(32, 4)).to(dtype)
    model = DistributedDataParallel(net)
    groups = [{"params": list(net[1:].parameters())}, {"params": list(net[0].parameters())}]
    if body_rate is not None:
        groups[1]["lr"] = body_rate  # type: ignore[assignment]
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=0.0)
    if by_batch:
        optimizer = torch.optim.SGD(groups, lr=rate)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        inputs = torch.randn(16, 12, generator=generator).to(dtype)
        targets = torch.randint(4, (16,), generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = cross_entropy(model(inputs).float(), targets)
        loss.backward()
        optimizer.step()
