"""A job that `hang-dump` has looked at, on this host or on several, as its report names it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdoctor.attach.processes import FoundJob
    from distdoctor.recording.recording import Recording
    from distdoctor.recording.trace.process_key import ProcessKey


@dataclass(frozen=True)
class LookedAt:
    """`about`: what the line of the job says after its command. What was seen is kept in `run_folder`; where that is None, in a
    new one whose name ends in `number`. `over_hosts`: it was looked for on all its hosts, so a rank that nobody saw is a gap."""

    command: str
    about: tuple[str, ...]
    number: int
    run_folder: Path | None = None
    over_hosts: bool = False
    launched_by: ProcessKey | None = None  # whose end is that of the job: one of its ranks, else its launcher

    @classmethod
    def here(cls, job: FoundJob, recording: Recording) -> LookedAt:
        """A job of this host."""
        from distdoctor.launch.processes import key_of
        from distdoctor.recording.rank_set import named

        more = ", ..." if len(job.ranks) > 8 else ""
        pids = ", ".join(str(process.pid) for process in list(job.ranks.values())[:8]) + more
        workers = sum(len(seen.workers) for seen in recording.stacks.ranks.values()) if recording.stacks else 0
        about = [f"{named(job.ranks)} of {job.world_size} (pid {pids})" if job.ranks else "no rank yet"]
        about += [f"{workers} DataLoader worker{'s' if workers > 1 else ''}"] if workers else []
        about += ["ranks numbered in the order of their start"] if job.assumed and len(job.ranks) > 1 else []
        about += [f"recorded in {job.run_folder}"] if job.run_folder else []
        first = min((process.pid for process in job.ranks.values()), default=0)
        number = job.launcher.pid if job.launcher is not None else first
        alive = first or number  # a rank before its launcher, which may be the shell of somebody
        process = key_of(alive) if alive else None
        # Another user's process names any folder it likes, with links in it: what root writes does not go there.
        ours = all(process.uid == os.geteuid() for process in job.ranks.values())
        return cls(job.command, tuple(about), number, job.run_folder if ours else None, launched_by=process)

    def line(self, *, of: int) -> str:
        """`job  torchrun train.py: ranks 0-1 of 2 (pid 7, 8)`."""
        return f"  job  {self.command[:70]}: {', '.join(self.about)}" + (f", one of {of} jobs" if of > 1 else "")
