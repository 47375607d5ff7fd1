"""The variables of functions at work and the attributes of objects, read without running any code of theirs."""

from __future__ import annotations

import sys
import types
from typing import Any

from distdoctor.probe.interruptions import hand_on

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
