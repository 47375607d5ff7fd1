"""Small tensors and arrays in plain objects of the user's own, as running normalisers: no module, no wrapper knows them.

Looked for among what the functions at work can reach, behind a few of the first steps. Whether they are statistics the source
tells.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probe import sites
from distdoctor.probe.gradients.buffers import Buffers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.tensors.module_trees import HeldParameter
from distdoctor.probe.variables import attributes_of, reachable

MOST = 16  # objects
MOST_OF_ONE = 8  # attributes
LARGEST = 1 << 14  # elements
SEARCHES = 3


class PlainObjects(Buffers):
    """Held weakly. What they hold is told by the names of class and attribute."""

    def __init__(self, context: GradientsContext) -> None:
        super().__init__(context, 0, ())
        self._objects: list[tuple[weakref.ref[Any], str]] = []
        self._searches = 0

    def search(self) -> None:
        if self._searches >= SEARCHES or len(self._objects) >= MOST:
            return
        self._searches += 1
        known = {id(one) for ref, _ in self._objects if (one := ref()) is not None}
        for one in reachable(sys._getframe(1)):
            kind = type(one)
            if id(one) in known or issubclass(kind, nn.Module) or not sites.is_users_class(kind):
                continue
            if next(_tensors_of(one), None) is not None and kind.__weakrefoffset__:
                names = [name.partition(" ")[0] for _, name in self._objects]
                same = names.count(kind.__name__)
                self._objects.append((weakref.ref(one), f"{kind.__name__} {same + 1}" if same else kind.__name__))
                if len(self._objects) >= MOST:
                    return

    def _held(self) -> Iterator[tuple[None, HeldParameter, Tensor]]:
        for ref, name in self._objects:
            one = ref()
            for attribute, tensor in _tensors_of(one) if one is not None else ():
                yield None, HeldParameter(f"{name}.{attribute}", type(one).__name__), tensor


def _tensors_of(one: Any) -> Iterator[tuple[str, Tensor]]:
    """Of an object the attributes that are small tensors, or arrays, of real numbers, without a gradient."""
    numpy, found = sys.modules.get("numpy"), 0
    for name, value in list(attributes_of(one).items()):  # another thread may set more of them
        if numpy is not None and type(value) is numpy.ndarray and value.dtype in (numpy.float32, numpy.float64):
            value = _as_tensor(value)
        plain = type(value) is Tensor and value.is_floating_point() and not value.requires_grad
        if plain and 0 < value.numel() <= LARGEST and found < MOST_OF_ONE:
            found += 1
            yield name, value


def _as_tensor(array: Any) -> Tensor | None:
    try:
        return torch.from_numpy(array) if array.size <= LARGEST and array.flags.writeable else None
    except (TypeError, ValueError) as error:
        hand_on(error)
        return None
