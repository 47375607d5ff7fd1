"""How long Python's garbage collector stops this rank, in which steps, and at which line it struck hardest.

A function of Python's must not be called back by `gc`: a signal that has arrived during the collection would have its handler run
in there, and what the handler raises would be lost. So what is written in C takes down the times and where it was, and the step
reads that.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

from torch._C._profiler import gather_traceback, symbolize_tracebacks

from distdoctor.probe import sites
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import suppressed
from distdoctor.recording.trace.events import GarbageCollected

WARM_UP = 2  # steps
LONG_NS = 3_000_000  # of one collection: shorter ones are added up and not looked at
_KEPT = 4_096  # collections of one step, 1.2 KB each; those before are forgotten


class Garbage:
    """Adds up to `rank.collected_ns`. One event, that is rewritten when a step has brought long collections."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.longest = self.count = self.written = self.spent = self.seq = 0
        self.site = ""
        self._began: deque[int] = deque(maxlen=_KEPT)
        self._ended: deque[tuple[int, Any]] = deque(maxlen=_KEPT)
        self.callback = self._of_c()

    def _of_c(self) -> Callable[[str, Any], None]:
        """What `gc` calls before and after each collection, on whatever thread it strikes: the others stand still meanwhile."""
        clock = iter(monotonic_ns, None)
        # They hold code objects and lines: no frame, and so no tensor, lives longer for it.
        stacks = iter(partial(gather_traceback, python=True, script=False, cpp=False), None)

        class Phases:  # `gc` calls getattr(phases, "start", info)
            start = property(partial(next, map(self._began.append, clock)))
            stop = property(partial(next, map(self._ended.append, zip(clock, stacks, strict=True))))

        return partial(getattr, Phases())

    def settle(self) -> None:
        """Add up the collections that are over."""
        while self._ended:
            ended, stack = self._ended.popleft()
            began = ended
            while self._began and self._began[0] <= ended:
                began = self._began.popleft()
            took = ended - began
            self.rank.collected_ns += took
            if took >= LONG_NS:
                self.count, self.spent = self.count + 1, self.spent + took
                if took > self.longest:
                    self.longest, self.site = took, _site(stack)

    def stepped(self) -> None:
        """A step is over: write down what is new."""
        trace = self.rank.trace
        if self.rank.step <= WARM_UP:  # imports and compilers leave much behind
            self.count = self.longest = self.spent = 0
        if trace is None or self.count == self.written:
            return
        self.written = self.count
        event, site = GarbageCollected(self.count, self.spent, self.longest), trace.texts.id(self.site)
        if self.seq:
            trace.note_again(self.seq, event, site=site)
        else:
            self.seq = trace.note(event, site=site)


def _site(stack: Any) -> str:
    """The user's line where a collection struck, "" where none led there."""
    (frames,) = symbolize_tracebacks([stack])
    of_user = (one for one in frames if sites.belongs_to_user(one["filename"]))
    return next((sites.site_at(one["filename"], int(one["line"]), one["name"]) for one in of_user), "")


def install(rank: Rank) -> Garbage:
    """Hear of every collection from now on."""
    garbage = Garbage(rank)

    def deaf() -> None:
        with suppressed(ValueError):
            gc.callbacks.remove(garbage.callback)

    gc.callbacks.append(garbage.callback)
    os.register_at_fork(after_in_child=deaf)  # a process that nobody reads would fill its memory with them
    atexit.register(rank.guarded(deaf))  # what torch has in C is taken down after that
    return garbage
