"""What is known about an object, for as long as it lives. It is found by identity: it need be neither hashable nor comparable."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

from distdoctor.probe.interruptions import hand_on

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """Remembers a value for an object without keeping the object alive. What cannot be referred to weakly is not remembered."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, thing: Any) -> Value | None:
        entry = self._known.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def set(self, thing: Any, value: Value) -> None:
        known, key = self._known, id(thing)

        def forget(gone: weakref.ref[Any]) -> None:
            entry = known.get(key)
            if entry is not None and entry[0] is gone:  # the number may belong to a younger object already
                del known[key]

        try:
            known[key] = (weakref.ref(thing, forget), value)
        except TypeError as error:
            hand_on(error)
            return
