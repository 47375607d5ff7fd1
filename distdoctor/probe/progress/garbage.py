"""How long Python's garbage collector stops this rank, in which steps, and at which line it struck hardest.

It strikes wherever something is allocated, also in the middle of the probe's own writing: while it is at work numbers are taken
down, and nothing is written.
"""

from __future__ import annotations

import gc
from time import monotonic_ns
from typing import Any

from distdoctor.probe import sites
from distdoctor.probe.context import Rank
from distdoctor.recording.trace.events import GarbageCollected

WARM_UP = 2  # steps
LONG_NS = 3_000_000  # of one collection: shorter ones are added up and not looked at


class Garbage:
    """Adds up to `rank.collected_ns`. One event, that is rewritten when a step has brought long collections."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.began = self.longest = self.count = self.written = self.spent = self.seq = 0
        self.site = ""

    def strikes(self, phase: str, info: dict[str, Any]) -> None:
        """What `gc` calls before and after each collection, on whatever thread it strikes: the others stand still meanwhile."""
        if phase == "start":
            self.began = monotonic_ns()
        elif self.began:
            took, self.began = monotonic_ns() - self.began, 0
            self.rank.collected_ns += took
            if took >= LONG_NS and not self.rank.silent:
                self.count, self.spent = self.count + 1, self.spent + took
                if took > self.longest:
                    self.longest, self.site = took, sites.user_site()

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


def install(rank: Rank) -> Garbage:
    """Hear of every collection from now on."""
    garbage = Garbage(rank)
    gc.callbacks.append(rank.guarded(garbage.strikes))
    return garbage
