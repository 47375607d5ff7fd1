"""Keys of a store that the user's own lines set and wait for: of each line the last one.

Whoever waits for a key that nobody sets hangs without a collective. Which rank has set such keys so far tells who left this one
out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.distributed.distributed_c10d import Store

from distdoctor.probe import sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.recording.trace.events import KeyAwaited, KeySet
from distdoctor.recording.trace.redaction import redacted

SETTING = ("set", "add", "append", "multi_set", "compare_set")
WAITING = ("wait", "get", "multi_get")
LINES = 64
KEYS = 512  # different ones that are written down; they share their room with all other texts
MOST, LONGEST = 8, 80  # keys of one call, and letters of a key


class StoreKeys:
    """Notes one event for each line, and writes it again when the line sets or awaits another key."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._events: dict[tuple[str, type], int] = {}  # (line, what it does) -> the number of its record
        self._set: dict[str, tuple[str, ...]] = {}  # by line the keys that it has set last
        self._texts: set[str] = set()

    def install(self) -> None:
        for name in SETTING:
            wrappers.lay(Store, name, self._around(is_wait=False))
        for name in WAITING:
            wrappers.lay(Store, name, self._around(is_wait=True))

    def _around(self, *, is_wait: bool) -> Callable[..., Any]:
        note = self.rank.guarded(self._note)

        def make(original: Any) -> Any:
            def call(store: Any, *args: Any, **kwargs: Any) -> Any:
                caller = sys._getframe(1)
                if not sites.is_users(caller):
                    return original(store, *args, **kwargs)
                given = args[0] if args else next(iter(kwargs.values()), None)
                if is_wait:
                    note(caller, KeyAwaited, given)
                result = original(store, *args, **kwargs)
                note(caller, KeyAwaited if is_wait else KeySet, given, True)
                return result

            return call

        return make

    def _note(
        self, caller: FrameType, kind: type[KeySet] | type[KeyAwaited], given: Any, is_over: bool = False
    ) -> None:
        trace = self.rank.trace
        if trace is None:
            return
        site = sites.site_of(caller)
        number = self._events.get((site, kind), 0)
        if not number and len(self._events) >= LINES:
            return
        keys, of_site = self._kept(given), trace.texts.id(site)
        event = KeySet(keys) if kind is KeySet else KeyAwaited(keys, is_over)
        if kind is KeySet:
            if self._set.get(site) == keys:
                return  # a counter that is asked by adding nothing to it
            self._set[site] = keys
        if number:
            trace.note_again(number, event, site=of_site)
        else:
            self._events[site, kind] = trace.note(event, site=of_site)

    def _kept(self, given: Any) -> tuple[str, ...]:
        """The keys, () where there is no room for further ones: then nobody is told a key that is not the last."""
        keys = given if isinstance(given, (list, tuple)) else (given,)
        texts = tuple(redacted(str(key)[:LONGEST]).replace("\0", " ") for key in keys[:MOST])
        joined = "\0".join(texts)
        if joined not in self._texts:
            if len(self._texts) >= KEYS:
                return ()
            self._texts.add(joined)
        return texts


def install(rank: Rank) -> None:
    """Lay a wrapper around each method of stores that sets or awaits keys."""
    StoreKeys(rank).install()
