"""Any other launcher (accelerate, torchrun, mpirun, a plain python script), as a child that has the seam in its environment."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from distdoctor.errors import WrongUse
from distdoctor.launch.observed_agent import AgentEnd

PATIENCE_SECONDS = 30  # as long as torch's agent gives its ranks to end after a signal


def run_command(command: Sequence[str], environment: Mapping[str, str], started: Callable[[int], None]) -> AgentEnd:
    """Run the launcher to its end. A signal that reaches us reaches it too; `started(pid)` is called once it runs.

    WrongUse: there is no such program.
    """
    try:
        child = subprocess.Popen(list(command), env=dict(environment))
    except OSError as trouble:
        raise WrongUse(
            f"{command[0]} cannot be started: {trouble.strerror}",
            way_out="What follows `--` is a whole command line, for example `distdoctor run -- torchrun train.py`.",
        ) from trouble
    got: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        # Ctrl-C on a terminal reaches the whole foreground group: the child has it already.
        if number != signal.SIGINT or not _has_terminal():
            child.send_signal(number)
        got.append(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        started(child.pid)
        return AgentEnd(_wait(child, got), got[0] if got else 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(child: subprocess.Popen[bytes], got: list[int]) -> int:
    """The child's exit code (128 + signal when it was killed); it is killed if it outlives a signal for too long, or a third."""
    deadline = math.inf
    while True:
        try:
            code = child.wait(timeout=0.5)
            return 128 - code if code < 0 else code
        except subprocess.TimeoutExpired:
            if got:
                deadline = min(deadline, time.monotonic() + PATIENCE_SECONDS)
            if len(got) > 2 or time.monotonic() > deadline:
                child.kill()


def _has_terminal() -> bool:
    """Whether we are the foreground job of a terminal."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
