"""The phase that a trainer is in, where its beginning and its end are told by different callbacks."""

from __future__ import annotations

import contextlib

from distdoctor.api import phase


class OpenPhase:
    """At most one phase is open."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._name = ""

    def change(self, name: str) -> None:
        """The phase is `name` from now on, "" for none."""
        if name != self._name:
            self._stack.close()
            self._name = name
            if name:
                self._stack.enter_context(phase(name))
