"""Copies of a model that are no modules: dictionaries by the parameters' names, or lists in their order, that an object of the
user's keeps, as hand-written moving averages do.

What else has these names and shapes (gradients, moments, masks, Fisher information) is told from weights by its size: every large
enough tensor of a copy is about as long as the parameter itself, trained a little or begun anew by the same rule.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probe import sites
from distdoctor.probe.variables import attributes_of, reachable

LEAST_TENSORS = 2
LEAST_ELEMENTS = 32  # of a tensor whose length says something
NEAR = 1.5  # times as long, or as short
PREFIX = "module."


@dataclass(frozen=True)
class HeldTensors:
    """The tensors under `keys` in an attribute of an object, which is held weakly. `order`: the places of their originals."""

    owner: weakref.ref[Any]
    attribute: str
    keys: tuple[Any, ...]
    order: tuple[int, ...]
    name: str
    kind: str

    def tensors(self) -> list[Tensor]:
        """As they are now; [] when the object is gone or holds something else there."""
        one = self.owner()
        held: Any = attributes_of(one).get(self.attribute) if one is not None else None
        if type(held) is list:
            found = held[:] if len(held) == len(self.keys) else []
        else:
            found = [dict.get(held, key) for key in self.keys] if issubclass(type(held), dict) else []
        return found if all(_is_plain(each) for each in found) else []


def layout_of(root: nn.Module, places: Mapping[int, int]) -> dict[str, int]:
    """Name -> place among the optimizer's parameters, of those of a model that it holds; {} for fewer than two."""
    found = {
        name.removeprefix(PREFIX): places[id(parameter)]
        for name, parameter in root.named_parameters()
        if id(parameter) in places
    }
    return found if len(found) >= LEAST_TENSORS else {}


def held_copies(
    frame: types.FrameType | None, layouts: Sequence[Mapping[str, int]], parameters: Sequence[Tensor]
) -> Iterator[HeldTensors]:
    """Those that the functions at work can reach, each with the layout that it has."""
    storages = {parameter.untyped_storage()._cdata for parameter in parameters if _is_plain(parameter)}
    for one in reachable(frame):
        kind = type(one)
        if issubclass(kind, nn.Module) or not kind.__weakrefoffset__ or not sites.is_users_class(kind):
            continue
        for attribute, held in list(attributes_of(one).items()):
            for layout in layouts if type(held) is list or issubclass(type(held), dict) else ():
                keys = _keys(held, layout)
                found = HeldTensors(
                    weakref.ref(one),
                    attribute,
                    keys,
                    tuple(layout.values()),
                    f"{kind.__name__}.{attribute}",
                    kind.__name__,
                )
                tensors = found.tensors() if keys else []
                if tensors and _are_weights(tensors, [parameters[place] for place in found.order], storages):
                    yield found
                    break


def _keys(held: Any, layout: Mapping[str, int]) -> tuple[Any, ...]:
    """Where in a dictionary or a list the tensor of each name lies; () where one is missing."""
    if type(held) is list:
        return tuple(range(len(held))) if len(held) == len(layout) else ()
    for prefix in ("", PREFIX):
        keys = tuple(prefix + name for name in layout)
        if all(dict.__contains__(held, key) for key in keys):
            return keys
    return ()


def _are_weights(tensors: Sequence[Tensor], originals: Sequence[Tensor], storages: set[int]) -> bool:
    """Whether these are other tensors of the same shapes, and each about as long as its original."""
    for own, original in zip(tensors, originals, strict=True):
        if not _is_plain(original) or own.shape != original.shape or own.untyped_storage()._cdata in storages:
            return False
    with torch.no_grad():
        large = [pair for pair in zip(tensors, originals, strict=True) if pair[0].numel() >= LEAST_ELEMENTS]
        lengths = [(float(own.float().norm()), float(original.float().norm())) for own, original in large]
    told = [pair for pair in lengths if pair != (0.0, 0.0)]  # biases begin as zeros
    return bool(told) and all(one < NEAR * other and other < NEAR * one for one, other in told)


def _is_plain(value: Any) -> bool:
    return (
        type(value) in (Tensor, nn.Parameter)
        and value.is_floating_point()
        and value.layout is torch.strided
        and not value.is_meta
    )
