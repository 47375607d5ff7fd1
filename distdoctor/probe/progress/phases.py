"""Long phases of a rank: checkpoints, evaluation, compiling. One record each, that is opened and closed in place.

A record per phase, not per call: a job that saves ten thousand small files fills no ring. A phase costs two looks at the clock.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import Compiled, LongPhase, place_of
from distdoctor.recording.trace.redaction import redacted

CHECKPOINT, COMPILE = "checkpoint", "compile"
MOST_COMPILED = 64  # compilations that are noted
_ENDED = place_of(LongPhase, "ended_ns")


class Phases:
    """The phases of one rank. Of nested ones (DCP saves through torch.save) the outermost counts."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self._inside = threading.local()
        self._records: dict[str, int] = {}

    def begins(self, name: str, *, named: bool = False) -> None:
        """The phase is on from now. Another thread may save while this one waits for the other ranks: that is no phase."""
        if self.rank.here.thread:
            return
        site = self.trace.texts.id(sites.user_site())
        # The same record again and again: the events of the rank's life must not be pushed out by its checkpoints.
        if name in self._records:
            self.trace.note_again(self._records[name], LongPhase(name, named=named), site=site)
        else:
            self._records[name] = self.trace.note(LongPhase(name, named=named), site=site)

    def ends(self, name: str) -> None:
        """The phase is over."""
        if name in self._records and not self.rank.here.thread:
            self.trace.events.patch(self._records[name], _ENDED, time.monotonic_ns())

    def around(self, name: str) -> Any:
        """A wrapper under which a function of the host is that phase. Its errors are the host's own."""
        inside, begins, ends = self._inside, self.rank.guarded(self.begins), self.rank.guarded(self.ends)

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if getattr(inside, "phase", ""):
                    return original(*args, **kwargs)
                inside.phase = name
                begins(name)
                try:
                    return original(*args, **kwargs)
                finally:
                    inside.phase = ""
                    ends(name)

            return skipped(call)

        return make


class Versions:
    """What torch.compile has compiled, and why again."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.count = rank, 0
        self._failures: dict[int, int] = {}  # id of the code -> guards that have failed so far

    def note(self, compile_id: str, began: int, site: str) -> None:
        """One compilation is over."""
        trace, self.count = self.rank.trace, self.count + 1
        if trace is not None and self.count <= MOST_COMPILED:
            took, reason = time.monotonic_ns() - began, redacted(self._reason()[:200])
            trace.note(Compiled(compile_id, reason, self.rank.step, took), site=trace.texts.id(site))

    def _reason(self) -> str:
        from torch._dynamo.utils import guard_failures

        latest = ""
        for code, reasons in list(guard_failures.items()):
            if len(reasons) > self._failures.get(id(code), 0):
                self._failures[id(code)], latest = len(reasons), str(reasons[-1])
        return latest


def install(rank: Rank) -> None:
    """Note checkpoints and compilations from now on."""
    if rank.trace is None:
        return
    phases = Phases(rank, rank.trace)
    for name in ("save", "load"):
        wrappers.lay_everywhere((torch.serialization, torch), name, phases.around(CHECKPOINT))
    wrappers.lay(torch, "compile", _compiling(phases))
    rank.phase_begins, rank.phase_ends = rank.guarded(phases.begins), rank.guarded(phases.ends)


def _compiling(phases: Phases) -> Any:
    """`torch.compile` imports the compiler; from then on it tells itself when it is at work."""
    begins, ends = phases.rank.guarded(phases.begins), phases.rank.guarded(phases.ends)
    listening: list[Any] = []

    def listen() -> None:
        from torch._dynamo.callback import callback_handler

        versions = Versions(phases.rank)
        note, open_since = phases.rank.guarded(versions.note), [(0, "")]

        @phases.rank.guarded
        def begun(args: Any) -> None:
            open_since[0] = time.monotonic_ns(), sites.user_site()
            begins(COMPILE)

        @phases.rank.guarded
        def done(args: Any) -> None:
            ends(COMPILE)
            note(str(getattr(args, "compile_id", "")), *open_since[0])

        callback_handler.register_start_callback(begun)
        callback_handler.register_end_callback(done)
        listening.extend((begun, done))

    listen_guarded = phases.rank.guarded(listen)

    def make(original: Any) -> Any:
        def compile(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if not listening:
                listen_guarded()
            return made

        return compile

    return make
