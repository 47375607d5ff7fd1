"""`distdoctor watch`: beside a real job, printed once and kept up to date in a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
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
    job = subprocess.Popen(RUN, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        once = until(lambda: printed(tmp_path, "--once"), "waiting for rank 1")
        shown = Terminal([*WATCH, "--every", "0.5"], tmp_path)
        until(lambda: shown.text, "waiting for rank 1")
        (tmp_path / "go").touch()

        assert shown.exit_code(60) == 0
        assert job.wait(60) == 0
    finally:
        (tmp_path / "go").touch()
        job.wait(60)
    assert "barrier #2 for" in once
    assert "at wait.py:10" in once
    assert "the job is over" in shown.text


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


class Terminal:
    """A command in a terminal of its own, and all that it has written there."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.text = ""
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
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
