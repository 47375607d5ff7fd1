"""Any other launcher (accelerate, torchrun, mpirun, a plain python script), as a child that has the seam in its environment."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from distdoctor.errors import WrongUse
from distdoctor.launch.observed_agent import AgentEnd

# Launchers of which every host runs one, and how they are told on how many: --num_machines 2, --nnodes=1:2.
_ONE_A_HOST = frozenset({"torchrun", "accelerate", "torch.distributed.run", "torch.distributed.launch"})
_NODES = re.compile(r"--(?:num[-_]machines|nnodes)(?:=(?P<number>.*))?")
PATIENCE_SECONDS = 30  # as long as torch's agent gives its ranks to end after a signal


def nodes_of(command: Sequence[str]) -> int:
    """On how many hosts such a launcher is to run, by its command line; 1 where that does not say, or where one starts it all."""
    module = command[2] if list(command[1:2]) == ["-m"] and len(command) > 2 else ""
    if _ONE_A_HOST.isdisjoint((os.path.basename(command[0]), module)):
        return 1
    for word, after in itertools.zip_longest(command, command[1:], fillvalue=""):
        found = _NODES.fullmatch(word)
        if found is not None:
            most = (found["number"] or after).rpartition(":")[2]
            return max(1, int(most)) if most.isdigit() else 1
    return 1


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
