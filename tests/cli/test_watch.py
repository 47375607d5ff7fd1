"""`distdoctor watch`: beside a real job, printed once and kept up to date in a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WAITED_FOR = """
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    print("rank 1 takes its time")
    while not os.path.exists("go"):
        time.sleep(0.1)
dist.barrier()  # rank 0 is here
dist.destroy_process_group()
"""
RUN = [sys.executable, "-m", "distdoctor", "run", "--standalone", "--nproc", "2", "--on-hang", "wait", "wait.py"]
WATCH = [sys.executable, "-m", "distdoctor", "watch"]


@pytest.mark.job
def test_the_rank_that_is_waited_for_is_seen_until_the_job_is_over(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAITED_FOR)
    job = Terminal(RUN, tmp_path)
    try:
        once = until(lambda: printed(tmp_path, "--once"), "waiting for rank 1")
        shown = Terminal([*WATCH, "--every", "0.5"], tmp_path)
        until(lambda: shown.text, "waiting for rank 1")
        until(lambda: job.text, "waiting for rank 1")
        (tmp_path / "go").touch()

        assert shown.exit_code(60) == 0
        assert job.exit_code(60) == 0
    finally:
        (tmp_path / "go").touch()
        job.exit_code(60)
    assert "barrier #2 at wait.py:11 for" in once
    assert "the job is over" in shown.text
    assert_table_below_the_jobs_own_words(job.text)


def assert_table_below_the_jobs_own_words(text: str) -> None:
    """The rows that the table takes scroll no more while it is there, and do so again before the report."""
    assert "rank 1 takes its time" in text
    assert text.index("distdoctor: the ranks start, .distdoctor/runs/") < text.index("rank 1 takes its time")
    taken, given_back = text.index(f"\x1b[1;{ROWS - 4}r"), text.rindex("\x1b[r")
    table = text[taken:given_back]
    assert f"\x1b[{ROWS - 3};1H\x1b[2Kdistdoctor: 2 of 2 ranks, waiting for rank 1 for" in table
    assert re.search(r"rank +step +step time +samples/s +memory +in\x1b", table)
    assert re.search(r" 0 +0 +- +- +[\d,]+ MiB +barrier #2 at wait.py:11 for [\d.]+ s", table)
    assert "distdoctor: 2 ranks, 0 steps" in text[given_back:]


def test_there_is_nothing_to_watch(say: Callable[..., Any]) -> None:
    said = say("watch")

    assert said.code == 4
    assert "there is no recording at" in said.err


def printed(folder: Path, *options: str) -> str:
    return subprocess.run([*WATCH, *options], cwd=folder, capture_output=True, text=True, timeout=60).stdout


def until(look: Callable[[], str], words: str, seconds: float = 60) -> str:
    end = time.monotonic() + seconds
    while words not in (seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.2)
    return seen


ROWS, COLUMNS = 40, 120


class Terminal:
    """A command in a terminal of its own, and all that it has written there."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.text = ""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        environment.pop("CI", None)
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def exit_code(self, seconds: float) -> int:
        code = self._process.wait(seconds)
        self._reader.join(5)
        return code

    def _read(self) -> None:
        while True:
            try:
                more = os.read(self._ours, 4096)
            except OSError:  # the other side is closed
                return
            self.text += more.decode("utf-8", "replace")
