"""One rank on the axis of time: what it sits in, what it did last, when. The rows of its log, put into words on demand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distdoctor.recording.recording import Call, RankTrace, SourceLine
from distdoctor.recording.trace.events import KeyAwaited, KeySet
from distdoctor.recording.trace.layout import POINT_TO_POINT, CallFlag, Op
from distdoctor.recording.trace.reader import Rows

FIRST_PAIRWISE, LAST_PAIRWISE = min(map(int, POINT_TO_POINT)), max(map(int, POINT_TO_POINT))
ASKING = (KeySet.number, KeyAwaited.number)
MOST_ASKING = 128  # of the newest events; each line of the user's has two at most
UNBLOCKING = int(CallFlag.ASYNC | CallFlag.NATIVE)


@dataclass(frozen=True)
class Timeline:
    """The log of one rank. Times are nanoseconds on its own monotonic clock unless a name says wall."""

    log: RankTrace

    @property
    def rank(self) -> int:
        return self.log.rank

    def wall(self, at_ns: int) -> int:
        """A time of this rank on the wall clock of its host; 0 stays 0."""
        return at_ns + self.log.monotonic_to_wall_ns if at_ns else 0

    @cached_property
    def last_ns(self) -> int:
        """The latest sign of life in the recording; 0 without any. To ask a store for a key is none: who polls it does so without
        end, and the one event of that line is written anew each time."""
        latest, events = 0, self.log.events[-MOST_ASKING:]
        for rows, names in (
            (self.log.calls[-1:], ("entered_ns", "returned_ns")),
            (self.log.steps[-1:], ("at_ns",)),
            (events[~np.isin(events["kind"], ASKING)][-1:], ("at_ns",)),
        ):
            for row in rows:
                latest = max(latest, *(int(row[name]) for name in names))
        # A pass is rewritten for every batch without a time of its own; only its ends are times.
        for row in self.log.passes[-1:]:
            latest = max(latest, int(row["started_ns"]), int(row["ended_ns"]))
        return latest

    @cached_property
    def steps(self) -> int:
        """Optimizer steps done."""
        return int(self.log.steps[-1]["step"]) if len(self.log.steps) else 0

    @cached_property
    def sitting(self) -> tuple[Call, ...]:
        """The calls that threads of this rank have entered and not left, at most one per thread.

        A call counts only when it blocks its thread (neither asynchronous nor issued by C++) and nothing that this thread did
        later is on record: torch's functional collectives come back without telling.
        """
        found: dict[int, Call] = {}
        done: set[int] = set()
        moved = max([int(rows[-1]["at_ns"]) for rows in (self.log.steps, self.log.events) if len(rows)], default=0)
        newest = self.log.calls[-64:]
        threads = newest["thread"].tolist()
        for row, thread in zip(newest[::-1], threads[::-1], strict=True):
            if thread in done:
                continue
            done.add(thread)
            if len(done) == len(set(threads)) == 1:
                return (self.log.call(row),) if is_open(row) and (thread or int(row["entered_ns"]) >= moved) else ()
            if is_open(row) and (thread or int(row["entered_ns"]) >= moved):
                found[thread] = self.log.call(row)
        return tuple(found[thread] for thread in sorted(found))

    @cached_property
    def pairwise(self) -> NDArray[np.bool_] | None:
        """Which of the rank's calls are sends and receives; None when there are none."""
        ops = self.log.calls["op"]
        mask: NDArray[np.bool_] = (ops >= FIRST_PAIRWISE) & (ops <= LAST_PAIRWISE)
        return mask if mask.any() else None

    @cached_property
    def many_threads(self) -> bool:
        """Whether more than one thread of this rank issues calls."""
        threads = self.log.calls["thread"]
        return bool(len(threads) and (threads != threads[0]).any())

    def threads_of(self, group: str) -> frozenset[int]:
        """The threads that have issued calls on a group."""
        rows = self.log.calls[self.group_mask(group)]
        return frozenset(int(thread) for thread in set(rows["thread"].tolist()))

    def group_mask(self, group: str) -> Rows:
        mask: Rows = self.log.calls["group"] == self.text_id(group)
        return mask

    def text_id(self, text: str) -> int:
        return self._ids.get(text, -1)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self.log.texts)}

    @cached_property
    def last_call(self) -> Call | None:
        return self.log.call(self.log.calls[-1]) if len(self.log.calls) else None

    @cached_property
    def failed_call(self) -> Call | None:
        """The last call, when an exception came out of it (or ended the rank while it was inside)."""
        last = self.last_call
        if last is None:
            return None
        return last if last.flags & CallFlag.FAILED or (not last.returned_ns and not last.is_async) else None

    @cached_property
    def last_site(self) -> SourceLine:
        """The last line of the user's that is on record."""
        for row in self.log.calls[-64:][::-1]:
            site = self.log.site(row["site"])
            if site:
                return site
        return SourceLine()


def is_open(row: Rows) -> bool:
    """Whether the row is a call that keeps its thread until it is complete, and has not come back."""
    if row["returned_ns"]:
        return False
    # monitored_barrier is noted by a wrapper around the function, so it carries the mark of C++ and blocks all the same.
    return not int(row["flags"]) & UNBLOCKING or int(row["op"]) == Op.MONITORED_BARRIER


def is_pairwise(call: Call) -> bool:
    return call.op in POINT_TO_POINT
