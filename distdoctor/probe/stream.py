"""What the larger streams have in common: trouble in one of them ends that one, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from distdoctor.probe.compile_guard import uncompiled
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.writer import TraceWriter

Function = TypeVar("Function", bound=Callable[..., Any])


class ProbeStream:
    """One stream of one rank. `off` after trouble."""

    name: ClassVar[str]

    def __init__(self, rank: Rank, trace: TraceWriter, deep: bool) -> None:
        self.rank, self.trace, self.deep = rank, trace, deep
        self.off = False
        self._left_out: set[str] = set()

    def guarded(self, function: Function) -> Function:
        """`function` as a callback for the host: it returns None and raises nothing; after trouble it does nothing."""
        plain = uncompiled(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.off or self.rank.silent:
                return None
            try:
                return plain(*args, **kwargs)
            except Exception as error:
                hand_on(error)
                self.off = True
                self._note_trouble(error)
                return None

        return call  # type: ignore[return-value]

    def leave_out(self, what: str, error: Exception) -> None:
        """Note what could not be looked at, the first of its kind. The stream goes on, and nobody takes it for whole."""
        if what not in self._left_out:
            self._left_out.add(what)
            self.trace.note_trouble(f"{self.name}: {what}: {type(error).__name__}: {error}")

    def _note_trouble(self, error: Exception) -> None:
        try:
            self.trace.note_trouble(f"{self.name}: {type(error).__name__}: {error}")
        except Exception as another:
            hand_on(another)
