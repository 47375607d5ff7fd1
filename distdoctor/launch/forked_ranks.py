"""Ranks forked off this process, with everything that it has loaded, and gone with all their descendants whatever happens.

Between this process and the ranks stands a keeper. It adopts what the ranks leave behind, tells how each of them ended, and ends
all of it when it is asked to, or when this process is gone, even by SIGKILL: then the pipe between them closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import psutil

from distdoctor.errors import CouldNotLook
from distdoctor.launch.processes import exit_code_and_signal
from distdoctor.recording.recording import RankEnd

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_POLL_MS = 200  # where the kernel offers no pidfd, and for what the ranks leave behind
_END_SECONDS = 10.0
_LIBC = ctypes.CDLL(None)


class ForkedRanks:
    """`target(rank)` runs in each of `nproc` forks of this process. `ends` says how those that are over ended."""

    def __init__(self, nproc: int, target: Callable[[int], None]) -> None:
        self.ends: dict[int, RankEnd] = {}
        self._unread = b""
        self._killed = False
        self._reports, reports = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self._keeper = _fork()
        if self._keeper == 0:
            os.close(self._reports)
            os.close(self._lifeline)
            _keep(nproc, target, reports, lifeline)
        os.close(reports)
        os.close(lifeline)
        self._nproc = nproc
        self._closed = False

    def wait(self, seconds: float) -> bool:
        """Whether all ranks have ended, after at most so long; returns as soon as one more has."""
        if len(self.ends) < self._nproc and select.select([self._reports], [], [], max(0.0, seconds))[0]:
            read = os.read(self._reports, 1 << 16)
            if not read:
                missing = sorted({*range(self._nproc)} - self.ends.keys())
                raise CouldNotLook(f"ranks {missing} could not be started", way_out="Free some memory or processes.")
            *lines, self._unread = (self._unread + read).split(b"\n")
            for line in lines:
                self._note(line.decode())
        return len(self.ends) == self._nproc

    def close(self) -> None:
        """Every rank and whatever it has started has gone when this returns."""
        if self._closed:
            return
        self._closed = self._killed = True
        os.close(self._lifeline)
        with contextlib.suppress(CouldNotLook, OSError):
            deadline = time.monotonic() + _END_SECONDS
            while not self.wait(deadline - time.monotonic()) and time.monotonic() < deadline:
                pass
        os.close(self._reports)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._keeper, 0)

    def _note(self, line: str) -> None:
        rank, status, at_ns = map(int, line.split())
        code, number = exit_code_and_signal(status)
        end = RankEnd(code, signal=number, at_ns=at_ns)
        self.ends[rank] = replace(end, ended_by_launcher=self._killed and number == signal.SIGKILL)


def _fork() -> int:
    """A fork without the warning about other threads: ours belong to pytest and torch, and hold no lock of Python."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            if stream is not None:
                stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _keep(nproc: int, target: Callable[[int], None], reports: int, lifeline: int) -> NoReturn:
    """The life of the keeper. It leaves without the interpreter's own end, which belongs to whoever forked it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        ranks = {_start(rank, target, before, (reports, lifeline)): rank for rank in range(nproc)}
        _watch(ranks, reports, lifeline)
        _end_descendants(ranks, reports)
        code = 0
    finally:
        os._exit(code)


def _start(
    rank: int, target: Callable[[int], None], handlers: Mapping[signal.Signals, Any], pipes: tuple[int, int]
) -> int:
    keeper = os.getpid()
    pid = _fork()
    if pid:
        return pid
    try:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == keeper:
            for number, handler in handlers.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            for pipe in pipes:
                os.close(pipe)
            target(rank)
    finally:
        os._exit(1)


def _watch(ranks: dict[int, int], reports: int, lifeline: int) -> None:
    """Until the other end of the lifeline is closed: tell of every rank that ends."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN | select.POLLHUP)
    for pid in ranks:
        with contextlib.suppress(OSError):
            poll.register(os.pidfd_open(pid), select.POLLIN)
    while True:
        ready = dict(poll.poll(_POLL_MS))
        _reap(ranks, reports)
        if lifeline in ready:
            return
        for fd in ready:
            poll.unregister(fd)
            os.close(fd)


def _reap(ranks: dict[int, int], reports: int) -> bool:
    """Collect every child that has ended; False when there is none any more."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
            if pid in ranks:
                with contextlib.suppress(OSError):  # nobody listens: the process that we were forked off has gone
                    os.write(reports, f"{ranks.pop(pid)} {status} {time.monotonic_ns()}\n".encode())
    except ChildProcessError:
        return False


def _end_descendants(ranks: dict[int, int], reports: int) -> None:
    """Kill the ranks and what they have started, also what is started meanwhile."""
    deadline = time.monotonic() + _END_SECONDS
    while _reap(ranks, reports) and time.monotonic() < deadline:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.002)
