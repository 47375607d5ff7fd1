"""Where the ranks were when memory ran low: whom the kernel kills, nobody can ask afterwards.

While little of the host's memory, or of the cgroup's limit, is left and it goes on shrinking, their stacks are looked at: some
eight times until nothing is left, however long that takes, and never while it stands still.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from distdoctor.recording.recording import SourceLine

INTERVAL_SECONDS = 0.25  # a few small files are read each time, 0.1 ms: 0.05 % of a core
LOW = 0.15  # of the limit: from there on it is looked at
RELAXED = 0.25  # of the limit: with so much left it begins anew
SHRUNK = 0.7  # of what was left at the look before

Lines = Callable[[], Mapping[int, SourceLine]]


class LastLines:
    """A thread that asks `left()` for the share of memory that is left (0-1), and `lines()` for the line of each rank when it is
    low."""

    def __init__(self, left: Callable[[], float], lines: Lines, interval: float = INTERVAL_SECONDS) -> None:
        self._left, self._lines, self._interval = left, lines, interval
        self._next = LOW
        self._seen: dict[int, tuple[SourceLine, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdoctor-memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> dict[int, tuple[SourceLine, int]]:
        """End it; rank -> its line when it was looked at last, and when that was (monotonic nanoseconds)."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        return dict(self._seen)

    def look(self) -> None:
        """Look at the stacks, if memory is low and has become less."""
        left = self._left()
        if left >= RELAXED:
            self._next = LOW
        if left >= self._next:
            return
        self._next = SHRUNK * left
        at_ns = time.monotonic_ns()
        self._seen |= {rank: (site, at_ns) for rank, site in self._lines().items()}

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            self.look()
