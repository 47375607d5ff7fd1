"""Bytes of tensors as they lie in memory: each storage once, of a DTensor what this rank holds."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.tensors.digests import local


class Categories(NamedTuple):
    """Bytes by what they are for."""

    parameters: int = 0
    gradients: int = 0
    state: int = 0
    buffers: int = 0


class Storages:
    """Counts storages that were not counted before. Remembers where they lie, and keeps none of them alive."""

    def __init__(self, known: Set[int] = frozenset()) -> None:
        self.known = known  # not counted either
        self.seen: set[int] = set()

    def add(self, tensor: Tensor) -> int:
        """The bytes of the tensor's storage; 0 when it was counted already, or lies nowhere (meta, fake, functional)."""
        try:
            storage = local(tensor).untyped_storage()
            where = storage._cdata  # data_ptr() would copy what was cloned lazily
            size = 0 if storage.device.type == "meta" else storage.nbytes()
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            hand_on(error)
            return 0
        if not size or where in self.seen or where in self.known:
            return 0
        self.seen.add(where)
        return size


def categories(optimizers: Iterable[Optimizer], roots: Iterable[nn.Module]) -> tuple[Categories, Storages]:
    """What the optimizers and these modules hold, and the storages that belong to it."""
    with torch._C.DisableTorchFunctionSubclass():  # a subclass of Tensor must not hear of it
        return _categories(optimizers, roots)


def _categories(optimizers: Iterable[Optimizer], roots: Iterable[nn.Module]) -> tuple[Categories, Storages]:
    storages = Storages()
    parameters: dict[int, Tensor] = {}
    states: list[Tensor] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameters[id(parameter)] = parameter
        for state in list(optimizer.state.values()):
            if isinstance(state, dict):
                states += [value for value in state.values() if isinstance(value, Tensor)]
    buffers: list[Tensor] = []
    for root in roots:
        for module in root.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    parameters[id(parameter)] = parameter
            buffers += [buffer for buffer in module._buffers.values() if buffer is not None]
    held = sum(map(storages.add, parameters.values()))
    gradients = sum(storages.add(p.grad) for p in parameters.values() if isinstance(p.grad, Tensor))
    return Categories(held, gradients, sum(map(storages.add, states)), sum(map(storages.add, buffers))), storages
