"""Start real jobs, and look at them with the command."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

KEPT = tempfile.TemporaryDirectory(prefix="distdoctor-looks-")  # where hang-dump keeps what it saw
VICTIM = Path(__file__).with_name("victim.py")
LIMIT_SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "DISTDOCTOR": "0", **more}


@dataclass
class Job:
    """A job that has been started: the processes that we started, by rank where they are ranks."""

    processes: list[subprocess.Popen[bytes]]
    seen: bytes = b""
    tail: list[bytes] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def wait_for(self, word: str, times: int) -> None:
        """Block until the processes have printed `word` so often."""
        end = time.monotonic() + LIMIT_SECONDS
        files = [process.stdout for process in self.processes if process.stdout is not None]
        while self.seen.count(word.encode()) < times:
            ready, _, _ = select.select(files, [], [], max(0.0, end - time.monotonic()))
            chunks = [os.read(file.fileno(), 65536) for file in ready]
            self.seen += b"".join(chunks)
            if not ready or not any(chunks):
                raise AssertionError(f"the job did not get there: {self.seen.decode('utf-8', 'replace')[-2000:]}")

    def end(self) -> None:
        everybody: list[psutil.Process] = []
        for process in self.processes:
            with suppress(psutil.Error):
                parent = psutil.Process(process.pid)
                everybody += [*parent.children(recursive=True), parent]
        for one in everybody:
            with suppress(psutil.Error):
                one.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()


def start(words: list[str], folder: Path | None = None, **more: str) -> subprocess.Popen[bytes]:
    env = environment(**more)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=folder)


@dataclass(frozen=True)
class Look:
    """What the command said."""

    code: int
    text: str
    errors: str
    seconds: float

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def document(self) -> Any:
        return json.loads(self.text)


def hang_dump(*words: str, patience: float = 1.0, prefix: tuple[str, ...] = ()) -> Look:
    """`distdoctor hang-dump` in a process of its own."""
    command = [*prefix, sys.executable, "-m", "distdoctor", "hang-dump", "--patience", str(patience), *words]
    since = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=KEPT.name, env=environment(NO_COLOR="1")
    )
    return Look(done.returncode, done.stdout, done.stderr, time.monotonic() - since)


def reported_later() -> Any:
    """The document of `distdoctor report` on what the last look has kept."""
    command = [sys.executable, "-m", "distdoctor", "report", "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=KEPT.name, check=True)
    return json.loads(done.stdout)


def stand_still(seconds: float = 2.5) -> None:
    """Let a hang grow old enough to be called one; there is nothing to wait for but the clock."""
    time.sleep(seconds)
