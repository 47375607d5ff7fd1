"""How many threads this rank computes with, on which cores, and how long its main thread stood in the queue for one of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.recording.cores import quota
from distdoctor.recording.trace.events import CoreShare

FIRST = 4  # step at which counting begins: imports and the first allocations are over
_QUEUE = "/proc/thread-self/schedstat"  # nanoseconds run, nanoseconds in the queue, times; proc(5)


class CoreShares:
    """One event, rewritten at steps 8, 16, 32, ...: what has been counted since step `FIRST`."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.seq = 0
        self.next = FIRST
        self.began: tuple[int, int, int] | None = None  # step, and `_times` then
        self.site = ""

    def install(self) -> None:
        """Note from where the number of threads is set, from now on."""
        wrappers.lay(torch, "set_num_threads", self._setting)

    def _setting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        noted = self.rank.guarded(self._set)

        def set_num_threads(*args: Any, **kwargs: Any) -> Any:
            noted()
            return original(*args, **kwargs)

        return skipped(set_num_threads)

    def _set(self) -> None:
        self.site = sites.user_site()

    def stepped(self, step: int) -> None:
        """An optimizer has made its step number `step`."""
        if step < self.next or self.rank.trace is None or self.rank.here.thread:
            return
        self.next = 2 * step
        times = _times()
        if times is None:
            return
        if self.began is None:
            self.began = step, *times
        else:
            first, ran, queued = self.began
            self._write(step - first, times[0] - ran, times[1] - queued)

    def _write(self, steps: int, ran: int, queued: int) -> None:
        trace = self.rank.trace
        if trace is None:
            return
        limit = quota()
        event = CoreShare(
            tuple(sorted(os.sched_getaffinity(0))),
            threads=torch.get_num_threads(),
            quota=0.0 if math.isinf(limit) else limit,
            steps=steps,
            ran_ns=ran,
            queued_ns=queued,
        )
        site = trace.texts.id(self.site)
        if self.seq:
            trace.note_again(self.seq, event, site=site)
        else:
            self.seq = trace.note(event, site=site)


def _times() -> tuple[int, int] | None:
    """(nanoseconds that this thread ran, nanoseconds in the queue). None where the kernel keeps no count, or the program has all
    the files open that it may: a figure that is missing, and no trouble."""
    try:
        with open(_QUEUE, encoding="ascii") as file:
            ran, queued, *_ = file.read().split()
    except (OSError, ValueError) as error:
        hand_on(error)
        return None
    return int(ran), int(queued)
