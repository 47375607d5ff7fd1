"""Counters of the user's own objects that steer a training: of a schedule that holds the optimizer, of an average that holds a
copy of the model. Read from the variables of the functions at work; no code of theirs is run."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probe import sites
from distdoctor.probe.variables import attributes_of, reachable
from distdoctor.recording.trace.state_file import UPDATES


def counters(steered: Mapping[int, str], shapes: Collection[torch.Size] = ()) -> dict[str, float]:
    """`KIND Class.attribute` -> number, of whoever holds one of the things that are given as `id` -> KIND, or a dictionary of
    tensors of these `shapes`, as of weights that are averaged. Of several of one class that which the innermost function holds.
    One that holds another module too steers more than this, and is left out."""
    found: dict[str, float] = {}
    for thing in reachable(sys._getframe(1)):
        own = attributes_of(thing)
        values = [*own.values(), *(own.get("_modules") or {}).values()]
        kinds = {kind for one in values if (kind := steered.get(id(one)))}
        if not kinds and any(type(one) is dict and _are_weights(one, shapes) for one in values):
            kinds = {UPDATES}
        if len(kinds) != 1 or not sites.is_users_class(type(thing)):
            continue
        if any(issubclass(type(one), nn.Module) and id(one) not in steered for one in values):
            continue
        at = f"{kinds.pop()} {type(thing).__name__}"
        for name, value in own.items():
            if type(value) is int:
                found.setdefault(f"{at}.{name}", value)
    return found


def _are_weights(held: dict[Any, Any], shapes: Collection[torch.Size]) -> bool:
    """Whether these are as many tensors as there are weights, or half of them, of their shapes."""
    if not 2 <= len(held) <= len(shapes) < 2 * len(held) + 1:
        return False
    return all(type(one) is Tensor and one.shape in shapes for one in list(held.values()))
