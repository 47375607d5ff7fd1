"""What the trainings of probe_bug_trainings.py share: a few steps, and a digest of what comes out."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn


def digest(*parts: Any) -> str:
    """Of tensors (the local shard of a distributed one), numbers and words."""
    seen = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.to_local() if hasattr(part, "to_local") else part
            seen.update(part.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
        else:
            seen.update(repr(part).encode())
    return seen.hexdigest()


def steps(model: nn.Module, optimizer: Any, count: int, x: torch.Tensor) -> list[float]:
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
