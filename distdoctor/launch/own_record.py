"""What this launcher writes into the run folder: its own host file, which no other launcher writes, and what was seen and said
while the ranks ran.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from distdoctor.launch.job_state import JobState
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.launch.watch import Watcher
from distdoctor.recording.files import write_whole
from distdoctor.recording.seen_live import SeenLive
from distdoctor.recording.trace.host_file import HostFile
from distdoctor.recording.trace.run_folder import digest_of


class OwnRecord:
    """The files of this launcher. `host.hosts` is how many launchers the job has until the rendezvous knows better."""

    def __init__(
        self, folder: Path, host: HostFile, state: JobState, rendezvous: Rendezvous, notice: Callable[[str], None]
    ) -> None:
        self._folder, self._state, self._rendezvous, self._notice = folder, state, rendezvous, notice
        self._wanted_hosts = host.hosts
        self._writing = threading.Lock()
        self.host = host
        self.is_refused = False  # the disk took no more

    def write(self, **news: Any) -> None:
        """Write the host file anew, with what is new in it."""
        with self._writing:
            hosts, starts = self.hosts, dict(self._state.starts)
            self.host = replace(self.host, starts=starts, hosts=hosts, interrupted=self._state.signal, **news)
            try:
                write_whole(self._folder / self.host.name, self.host.to_json())
            except OSError as trouble:  # a full disk, a folder that has gone: the job is not to know
                if not self.is_refused:
                    self._notice(f"{self._folder} takes no more ({trouble.strerror}); the job goes on")
                self.is_refused = True

    @property
    def hosts(self) -> int:
        """How many launchers the job has; 0: not known."""
        return self._rendezvous.hosts or self._wanted_hosts

    def keep_what_was_seen(self, watcher: Watcher, *, succeeded: bool = False) -> SeenLive:
        """Write down the stacks and what was said: nobody can see or say it again when the ranks have ended."""
        said = watcher.said(
            succeeded=succeeded, interrupted=bool(self._state.signal), aborting=self._state.aborting and not succeeded
        )
        seen = SeenLive(self.host.name, self._state.attempt, watcher.stacks_wall_ns, watcher.stacks, said.as_values())
        with contextlib.suppress(OSError):  # a full disk: what was written of the host says so
            write_whole(self._folder / seen.name, seen.to_json())
            if not self.host.running:
                self.write(digests={**self.host.digests, seen.name: digest_of(self._folder / seen.name)})
        return seen
