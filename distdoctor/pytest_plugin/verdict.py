"""What the checks say about the ranks of a test: while they run, when they are late, and when they are over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distdoctor import plugins
from distdoctor.attach.attached import recordings_of
from distdoctor.attach.jobs import job_of_run
from distdoctor.attach.processes import HostProcesses
from distdoctor.attach.snapshot import Manner
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.errors import DoctorError
from distdoctor.launch.forked_ranks import ForkedRanks
from distdoctor.launch.post_mortem import diagnose, open_recording
from distdoctor.launch.watch import Watcher
from distdoctor.pytest_plugin.mark import RankMark
from distdoctor.recording.recording import Job, RankEnd, Recording
from distdoctor.recording.stacks import Frame, Stacks
from distdoctor.recording.trace.run_folder import JOB_FILE, job_to_json

if TYPE_CHECKING:
    from distdoctor.pytest_plugin.reports import TestResult

_SAMPLES = 3
_PATIENCE = 10.0
# When the time of a test is over, whoever has not run for a second holds up the others: they may have come to wait just before.
_PATIENCE_WHEN_LATE = 1.0
_INNERMOST_OF_OURS = "/distdoctor/pytest_plugin/in_rank.py"


class RankObserver:
    """Looks at the ranks of one test. `stacks`: where they were when they were late."""

    def __init__(self, item: pytest.Function, mark: RankMark, folder: Path, ranks: ForkedRanks) -> None:
        self._item, self._mark, self._folder, self._ranks = item, mark, folder, ranks
        self._plugins = plugins.load()
        self._seen: Diagnosis | None = None
        self._watcher: Watcher | None = None
        self.stacks: Stacks | None = None

    @property
    def is_hung(self) -> bool:
        """A standstill is proven: nobody will ever go on."""
        return self._watcher is not None and self._watcher.is_hung

    def start(self) -> None:
        """Look for a standstill from now on, beside the test."""
        if self._watcher is None:
            self._watcher = self._new_watcher()
            self._watcher.start()

    def look(self) -> None:
        """Ranks are late: what every one of them does now, and what the checks say of it."""
        seen = self._with_stacks(_PATIENCE_WHEN_LATE)
        self.stacks = seen.stacks if seen is not None else None
        watcher = self._watcher or self._new_watcher()
        self._seen = watcher.hang or watcher.look(seen=seen)

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.closing = True
            self._watcher.stop()

    def diagnosis(self, result: TestResult) -> Diagnosis:
        """Made of what was seen before the ranks were ended, if they had to be."""
        return self._seen or self._after_the_end(result)

    def _new_watcher(self) -> Watcher:
        return Watcher(
            self._folder,
            lambda: self._job(dict(self._ranks.ends)),
            self._plugins.checks.values(),
            self._plugins.remedies,
            tell=lambda finding, diagnosis: None,
            hung=lambda diagnosis, proven: None,
            closer=self._with_stacks,
            ignored=self._mark.allow,
        )

    def _job(self, ends: dict[int, RankEnd]) -> Job:
        return Job(
            argv=("pytest", self._item.nodeid),
            world_size=self._mark.nproc,
            ends=ends,
            launcher="pytest",
        )

    def _after_the_end(self, result: TestResult) -> Diagnosis:
        job = self._job(dict(result.ends))
        (self._folder / JOB_FILE).write_text(job_to_json(job), "utf-8")
        recording = replace(open_recording(self._folder), job=job)
        return diagnose(recording, self._plugins.checks, self._plugins.remedies, self._mark.allow)

    def _with_stacks(self, most_patience: float = _PATIENCE) -> Recording | None:
        try:
            host = HostProcesses.now()
            patience = min(most_patience, self._mark.timeout / 2)
            job = job_of_run(self._folder, host)
            seen = recordings_of([job], host, Manner(samples=_SAMPLES, patience_seconds=patience))[0]
        except DoctorError:
            return None
        return replace(seen, stacks=_without_pytest(seen.stacks) if seen.stacks else None)


def _without_pytest(stacks: Stacks) -> Stacks:
    """The stacks from the test's function on: what called it is the same in every rank, and belongs to pytest."""
    ranks = {}
    for rank, seen in stacks.ranks.items():
        if seen.process is not None:
            threads = tuple(replace(t, frames=_below_ours(t.frames)) for t in seen.process.threads)
            seen = replace(seen, process=replace(seen.process, threads=threads))
        ranks[rank] = seen
    return replace(stacks, ranks=ranks)


def _below_ours(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Frames are innermost first."""
    ours = [at for at, frame in enumerate(frames) if frame.path.endswith(_INNERMOST_OF_OURS)]
    return frames[: ours[0] + 1] if ours else frames
