"""The variables of functions at work and the attributes of objects, read without running any code of theirs."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from distdoctor.probe import sites
from distdoctor.probe.interruptions import hand_on

DEPTH = 3  # `self`, its attributes, and theirs
MOST = 2048  # objects that are looked at
MOST_HELD = 64  # of one list or dictionary
_WALK = 96  # frames
# Asked of types: some objects answer as they like.
_OPAQUE = (type, types.ModuleType, types.FunctionType, Tensor, str, int, float, bytes)
_NEW_LOCALS = 3  # CO_OPTIMIZED | CO_NEWLOCALS: a function, whose f_locals is a copy


def locals_of(frame: types.FrameType) -> list[tuple[str, Any]]:
    """The variables of a function at work.

    Before Python 3.13 asking for them leaves a copy in the frame that would keep deleted variables alive: it is emptied again,
    unless the function itself has called `locals()` and holds it.
    """
    held = frame.f_locals
    found = list(held.items())
    if type(held) is dict and frame.f_code.co_flags & _NEW_LOCALS == _NEW_LOCALS and sys.getrefcount(held) <= 3:
        held.clear()
    return found


def attributes_of(value: Any) -> dict[str, Any]:
    """What lies in the `__dict__` of an object; no code of its class is run."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError as error:
        hand_on(error)
        return {}
    return found if type(found) is dict else {}


def held_by(one: Any) -> Iterator[tuple[str, Tensor]]:
    """`attribute` or `attribute[key]` and the tensor there. Subclasses of Tensor may answer as they like, and are left out. A key
    that is no name (a path of data, a text) is told by its place."""
    for name, value in list(attributes_of(one).items()):  # another thread may set more of them
        if type(value) is Tensor:
            yield name, value
        elif type(value) in (list, tuple):
            yield from ((f"{name}[{at}]", each) for at, each in enumerate(value[:MOST_HELD]) if type(each) is Tensor)
        elif type(value) is dict:
            pairs = enumerate(list(value.items())[:MOST_HELD])
            yield from ((f"{name}[{_shown(key, at)}]", each) for at, (key, each) in pairs if type(each) is Tensor)


def _shown(key: Any, place: int) -> str:
    named = type(key) is int or (type(key) is str and f"_{key}".replace(".", "_").isidentifier())
    return repr(key)[:80] if named else f"#{place}"


def reachable(frame: types.FrameType | None) -> Iterator[Any]:
    """Objects that the user's functions at work can reach, at or outside `frame`, those of the innermost one first."""
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
            yield from one[:MOST_HELD]
        elif type(one) is dict:
            yield from list(one.values())[:MOST_HELD]
