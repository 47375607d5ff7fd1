"""What the streams of one rank share: the trace, the step counter, and the guard that keeps trouble away from the host."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.layout import Claim
from distdoctor.recording.trace.probe_settings import VARIABLE, ProbeSettings

MOST_OPEN = (
    256  # synchronous calls that a rank sits in at once: one in each thread, and in each handler that interrupts one
)

Function = TypeVar("Function", bound=Callable[..., Any])


class ThreadState(threading.local):
    """What belongs to one thread of the rank: its number, and in `handed` that of the asynchronous call whose handle the user's
    own line is about to get.

    A thread that C++ has made gets no object of Python's `threading` from us: `current_thread()` would leave one behind.
    """

    handed: int = 0  # 0: none

    def __init__(self, numbers: Iterator[int]) -> None:
        main = threading.get_ident() == threading.main_thread().ident
        self.thread = 0 if main else min(next(numbers), 0xFFFF)


class Rank:
    """This process as the probe sees it. `trace` is None until the rank is known (mp.spawn: at init_process_group)."""

    def __init__(self, folder: str, settings: ProbeSettings) -> None:
        self.folder = folder
        self.settings = settings
        self.streams = settings.streams
        self.trace: TraceWriter | None = None
        self.pid = os.getpid()
        self.step = 0
        self.epoch = -1
        self.silent = False
        self.may_join = False  # after a fork: nobody above is a rank, and this process may still become one
        self.was_forked = False  # such a process has become one
        self.native_ns = 0  # when C++ issued its last call, monotonic
        self.waited_ns = 0  # in `wait` of handles so far
        self.forwarded = 0  # elements that went into wrapped models since the step before
        self.collected_ns = 0  # in garbage collection so far
        self.note_exception: Callable[[BaseException], None] = lambda error: None  # for who catches what ends the rank
        # See `progress.phases`; for streams that see one begin.
        self.phase_begins: Callable[..., None] = lambda name, named=False: None
        self.phase_ends: Callable[[str], None] = lambda name: None
        self.watched: list[Any] = []  # models of which the user says that they are replicas: see `gradients.watched`
        self.on_watched: Callable[[], None] = lambda: None  # told when another one is watched; guarded
        self.on_pass: Callable[[], None] = lambda: None  # told when a loader begins to be read; guarded
        self.on_idle: Callable[[], None] = lambda: None  # told where a forward may be about to begin; guarded
        # Told what a wrapped model is about to be trained with, while somebody wants to know; guarded.
        self.on_given: Callable[[Any], None] | None = None
        # Told of a tensor with a gradient that is about to be summed over these ranks, while somebody wants to know; guarded.
        self.on_summed: Callable[[Any, tuple[int, ...]], None] | None = None
        self.on_exception: list[Callable[[BaseException], None]] = []  # told of the uncaught exception; guarded
        self.on_group: list[Callable[[], None]] = []  # told when init_process_group has come back; guarded
        self.at_end: list[Callable[[], None]] = []  # told when the interpreter shuts down; guarded
        self.here = ThreadState(itertools.count(1))
        # The synchronous calls that the rank sits in, by the identity of the frame that will wait for each.
        self.open: dict[int, int] = {}

    def forked(self) -> None:
        """This process was forked off the one that the probe was started in: it is a helper, unless it joins a job itself."""
        self.may_join = self.trace is None and (self.may_join or not self.silent)
        self.silent = True

    def wakes(self) -> None:
        """The process that was forked off is a rank after all (torch.multiprocessing with "fork", a launcher by hand)."""
        self.pid, self.here = os.getpid(), ThreadState(itertools.count(1))
        self.open.clear()
        self.silent = self.may_join = False
        self.was_forked = True

    def claim(self) -> None:
        """This process is the rank for sure: what it starts from now on is none, and is not told how to record."""
        if self.trace is not None and not self.trace.claimed:
            self.trace.claim(Claim.RANK)
            os.environ.pop(VARIABLE, None)

    def trouble(self, where: str, error: BaseException) -> None:
        """Note what went wrong and fall silent for good. Raises nothing but what is the host's own: see `interruptions`."""
        hand_on(error)
        self.silent = True
        try:
            if self.trace is not None:
                self.trace.note_trouble(f"{where}: {type(error).__name__}: {error}")
        except Exception as another:
            hand_on(another)

    def guarded(self, function: Function) -> Function:
        """`function` as a callback for the host: silent after trouble or a fork, returning None instead of raising."""
        where = getattr(function, "__name__", "probe")

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.silent:
                return None
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.trouble(where, error)
                return None

        return call  # type: ignore[return-value]
