"""Hear signals at once, also while the main thread stands in a call of C++ and no handler of Python's can run."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Self

HEARD = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """While this lasts, SIGTERM and SIGHUP end nobody: the job is over, and what is left to do takes seconds. A scheduler that
    ends a job host by host asks those last whose ranks have long gone with the others. Ctrl-C still ends us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, frame: None) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class SignalsHeard:
    """While this lasts `heard(number)` is called in a thread, once, for the first signal that asks us to end. Handlers stay as
    they are; where the main thread's wakeup file descriptor is in use by somebody else, nothing is heard."""

    def __init__(self, heard: Callable[[int], None]) -> None:
        self._heard = heard
        self._read = self._write = -1
        self._over = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name="distdoctor-signals", daemon=True)

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if signal.set_wakeup_fd(-1) not in (-1, self._write):
            pass  # somebody else's, and it is gone with the handlers that it was for
        os.eventfd_write(self._over, 1)
        self._thread.join(timeout=5)
        for fd in (self._read, self._write, self._over):
            os.close(fd)

    def _listen(self) -> None:
        told = False
        while True:
            ready, _, _ = select.select([self._read, self._over], [], [])
            if self._over in ready:
                return
            numbers = os.read(self._read, 64)
            first = next((number for number in numbers if number in HEARD), 0)
            if first and not told:
                told = True
                self._heard(first)
