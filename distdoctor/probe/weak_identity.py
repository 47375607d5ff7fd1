"""What is known about an object, for as long as it lives. It is found by identity: it need be neither hashable nor comparable."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from distdoctor.probe.interruptions import hand_on

Value = TypeVar("Value")
FEWEST = 64  # entries before the dead ones are looked for


class ByIdentity(Generic[Value]):
    """Remembers a value for an object without keeping the object alive. What cannot be referred to weakly is not remembered.

    Nothing runs when an object goes: an error there, or an exception of the host's signal handler, would be lost. What is known
    of objects that are gone is forgotten when it has become as much as that of the living.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}
        self._most = FEWEST

    def __len__(self) -> int:
        return len(self._known)

    def get(self, thing: Any) -> Value | None:
        entry = self._known.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def set(self, thing: Any, value: Value) -> None:
        try:
            self._known[id(thing)] = (weakref.ref(thing), value)
        except TypeError as error:
            hand_on(error)
            return
        if len(self._known) > self._most:
            self._known = {key: entry for key, entry in list(self._known.items()) if entry[0]() is not None}
            self._most = max(FEWEST, 2 * len(self._known))


Reference = TypeVar("Reference", bound="weakref.ref[Any]")


class Dead(deque[Reference]):
    """Weak references whose objects are gone, until somebody asks. Their callback is `append`.

    It is written in C: in a function of Python's a signal handler of the host's might run, and what it raises is lost there.
    """

    def each(self) -> Iterator[Reference]:
        """Each of them. It is still there for other threads while the caller deals with it: who finds none may rely on that."""
        while self:
            try:
                one = self[0]
                yield one
                self.remove(one)
            except (IndexError, ValueError) as error:  # another thread was quicker
                hand_on(error)
