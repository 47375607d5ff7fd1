"""The session fails when a process that a test started is still there after it, and names the process and the test.

Every process below the session inherits SESSION from its environment, so one that has lost its parent is found as well.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

SESSION = "TEST_SESSION_ID"
PATIENCE = 15.0
"""Seconds for xdist's workers and their fork servers to go after their last test."""
SERVANTS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker", "forked_command.py")


@dataclass(frozen=True)
class Leftover:
    process: psutil.Process
    command: str
    test: str
    """The test that was running when the process (or the fork server that it came from) was started."""

    def __str__(self) -> str:
        return f"pid {self.process.pid}, started during {self.test}: {self.command}"


class Leftovers:
    """A pytest plugin for the process that starts the others. What is left over is named and ended."""

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        self.found: list[Leftover] = []
        os.environ[SESSION] = self.token

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around xdist's, which ends its workers
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        yield
        self.found = outlasting(self.token, PATIENCE)
        for leftover in self.found:
            leftover.process.kill()
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:  # the terminal's summary has been printed within pytest_sessionfinish
        if self.found:
            print(f"\n{len(self.found)} processes outlived the tests and were ended:")
        for leftover in self.found:
            print(f"LEFTOVER {leftover}")


def outlasting(token: str, patience: float) -> list[Leftover]:
    """The processes of the session that are still there after `patience` seconds, without this one and its own fork server."""
    until = time.monotonic() + patience
    while (found := list(_below(token))) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _below(token: str) -> Iterator[Leftover]:
    for process in psutil.process_iter():
        try:
            environ = process.environ() if process.pid != os.getpid() else {}
            if environ.get(SESSION) != token or process.status() == psutil.STATUS_ZOMBIE:
                continue
            command = " ".join(process.cmdline())
            servant = any(name in command for name in SERVANTS)
            if servant and process.ppid() == os.getpid():  # ours; it goes when we go
                continue
            yield Leftover(process, command[:200], environ.get("PYTEST_CURRENT_TEST", "the session"))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
