"""The table of `distdoctor watch` below the output of the job that `run` has started, where that is a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TextIO

from distdoctor.cli.loudness import quiet
from distdoctor.cli.status_lines import StatusLines
from distdoctor.report.printable import printable

EVERY_SECONDS = 1.0
SHARE_OF_A_CORE = 0.02  # at most, for reading and drawing: the ranks need theirs
READ = frozenset({"calls", "groups", "steps", "events", "passes", "memory"})  # of the traces
ABOVE = 2  # lines: who is waited for, and the names of the columns
OFF = "DISTDOCTOR_LIVE"  # in the environment: 0 shows no table


class LiveView:
    """A thread that draws until `close`."""

    def __init__(self, folder: Path, stream: TextIO) -> None:
        self._folder, self._lines = folder, StatusLines(stream)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdoctor-live", daemon=True)

    @classmethod
    def of(cls, folder: Path) -> LiveView | None:
        """Where somebody looks at a terminal that can do it, and has not turned it off."""
        stream = sys.stderr
        dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown", "")
        off = quiet() or os.environ.get(OFF) == "0" or os.environ.get("CI")
        return None if dumb or off or stream is None or not stream.isatty() else cls(folder, stream)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back; called again, nothing happens."""
        self._over.set()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(5)
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self._lines.close()

    def _run(self) -> None:
        pause = EVERY_SECONDS
        self._show([f"distdoctor: the ranks start, {os.path.relpath(self._folder)}"])
        while not self._over.wait(pause):
            began, lines = time.thread_time(), list[str]()
            with contextlib.suppress(Exception):  # a table is worth no word of trouble
                lines = table_now(self._folder, self._lines.room)
            self._show(lines)
            spent = time.thread_time() - began if lines else 0.0  # the first time it is our own imports
            pause = max(EVERY_SECONDS, spent / SHARE_OF_A_CORE)

    def _show(self, lines: Sequence[str]) -> None:
        with contextlib.suppress(Exception):
            if lines and not self._over.is_set():
                self._lines.show([printable(line) for line in lines])


def table_now(folder: Path, most: int) -> list[str]:
    """The table of this moment in so many lines; nothing before the first rank has come."""
    from distdoctor.diagnosis.speed.progress_now import ProgressNow
    from distdoctor.recording.trace.run_folder import read_run
    from distdoctor.report.live_table import live_table

    recording = read_run(folder, only=READ)
    if not recording.ranks:
        return []
    now = replace(recording.job, running=True, read_at_ns=time.monotonic_ns(), read_wall_ns=time.time_ns())
    table = live_table(ProgressNow.of(replace(recording, job=now)), max(1, most - ABOVE))
    ranks = f"{len(recording.ranks)} of {recording.world_size} ranks"
    head = "distdoctor: " + ", ".join((ranks, *table.notes, os.path.relpath(folder)))
    return [head, *replace(table, notes=()).lines()[1:]]
