"""A callback that goes back to older weights, on one rank or on all."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from jobs.replicas import Net, train


class Best:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.state: dict[str, Any] = {}

    def after_step(self, step: int) -> None:
        if step == 1:
            self.state = {name: one.clone() for name, one in self.model.state_dict().items()}
        if step == 3:
            self.model.load_state_dict(self.state)  # back to them


def callbacks(model: nn.Module, rank: int, on_every_rank: bool) -> list[Best]:
    if on_every_rank:
        return [Best(model)]
    found = []
    if rank == 0:
        found.append(Best(model))  # rank 0 alone
    return found


def training(rank: int, world_size: int, *, on_every_rank: bool = False) -> str:
    model = DistributedDataParallel(Net())
    hooks = callbacks(model.module, rank, on_every_rank)

    def after_step(step: int) -> None:
        for hook in hooks:
            hook.after_step(step)

    return train(model, rank, after_step=after_step)
