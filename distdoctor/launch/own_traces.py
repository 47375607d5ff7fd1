"""Finds the ranks of this launcher among those of many that record into one folder and of which another launcher looks at all:
how they end only their own can see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from distdoctor.errors import DoctorError
from distdoctor.recording.trace.reader import TraceHead, read_head
from distdoctor.recording.trace.run_folder import trace_paths

INTERVAL_SECONDS = 0.5
LONGER_SECONDS = 5.0  # once no more ranks of ours come: thousands of launchers list one folder
LOOKS_IN_VAIN = 10  # until none is expected any more


class OwnTraces:
    """A thread that looks into the run folder. `found(rank, path)` is called once for each trace whose writer `is_ours`."""

    def __init__(
        self, folder: Path, is_ours: Callable[[TraceHead], bool], found: Callable[[int, Path], object]
    ) -> None:
        self._folder, self._is_ours, self._found = folder, is_ours, found
        self._known: set[Path] = set()
        self._came = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdoctor-own-traces", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        in_vain = 0
        while not self._over.wait(INTERVAL_SECONDS if in_vain < LOOKS_IN_VAIN else LONGER_SECONDS):
            if self._look():
                self._came, in_vain = True, 0
            elif self._came:
                in_vain += 1

    def _look(self) -> bool:
        """Whether a rank of ours has shown itself since the last time."""
        new = [(rank, path) for rank, path in trace_paths(self._folder).items() if path not in self._known]
        ours = [(rank, path) for rank, path in new if self._is_mine(path)]
        for rank, path in ours:
            self._found(rank, path)
        return bool(ours)

    def _is_mine(self, path: Path) -> bool:
        try:
            head = read_head(path)
        except DoctorError:
            return False  # it is being written: the next look reads it
        self._known.add(path)
        return self._is_ours(head)
