"""Counters of the user's own objects that steer a training: of a schedule that holds the optimizer, of an average that holds a
copy of the model. Read from the variables of the functions at work; no code of theirs is run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

from distdoctor.probe import sites
from distdoctor.probe.variables import attributes_of, locals_of

DEPTH = 3  # `self`, its attributes, and theirs
MOST = 2048  # objects that are looked at
_WALK = 96  # frames
_OPAQUE = (
    type,
    ModuleType,
    FunctionType,
    Tensor,
    str,
    int,
    float,
    bytes,
)  # asked of types: some objects answer as they like


def counters(steered: Mapping[int, str]) -> dict[str, float]:
    """`KIND Class.attribute` -> number, of whoever holds one of the things that are given as `id` -> KIND. Of several of one
    class that which the innermost function holds. One that holds another module too steers more than this, and is left out."""
    found: dict[str, float] = {}
    for thing in _reachable():
        own = attributes_of(thing)
        values = [*own.values(), *(own.get("_modules") or {}).values()]
        kinds = {kind for one in values if (kind := steered.get(id(one)))}
        if len(kinds) != 1 or not sites.is_users_class(type(thing)):
            continue
        if any(issubclass(type(one), nn.Module) and id(one) not in steered for one in values):
            continue
        at = f"{kinds.pop()} {type(thing).__name__}"
        for name, value in own.items():
            if type(value) is int:
                found.setdefault(f"{at}.{name}", value)
    return found


def _reachable() -> Iterator[Any]:
    """Objects that the functions at work can reach, those of the innermost one first."""
    frame: FrameType | None = sys._getframe(1)
    seen: set[int] = set()
    for _ in range(_WALK):
        if frame is None:
            return
        level = [value for _, value in locals_of(frame)] if sites.is_users(frame) else []
        for _ in range(DEPTH):
            level = [one for one in _opened(level) if id(one) not in seen and not issubclass(type(one), _OPAQUE)]
            for one in level:
                if len(seen) >= MOST:
                    return
                if id(one) not in seen:
                    seen.add(id(one))
                    yield one
            level = [value for one in level for value in attributes_of(one).values()]
        frame = frame.f_back


def _opened(values: list[Any]) -> Iterator[Any]:
    """With what lies in lists and dictionaries."""
    for one in values:
        yield one
        if type(one) in (list, tuple):
            yield from one[:64]
        elif type(one) is dict:
            yield from list(one.values())[:64]
