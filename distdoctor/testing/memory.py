"""Recordings of what memory was used for, made by hand: for tests of checks on memory.

job = memory_job(ranks=2).trains(40, rss=lambda rank, step: 500 * MIB)
job.holds("losses", "train.py:31 train", {3: dict(old_nodes=20), 6: dict(old_nodes=50), 9: dict(old_nodes=80)}, kind="list")
sick = job.recording()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from distdoctor.recording.recording import Job, RankEnd, Recording
from distdoctor.recording.trace.events import Exiting, TraceEvent, UncaughtException
from distdoctor.recording.trace.layout import DOING, HOLDER, MEMORY, PEAK, RECORDS, SAVED, Phase
from distdoctor.recording.trace.reader import dtype_of
from distdoctor.testing.rank_trace import TraceBuilder, noting_sources, site_of

MIB = 1 << 20
STEP_LINE = "train.py:33 train"
Number = int | Mapping[int, int] | Callable[[int, int], int]


class MemoryJob:
    """The ranks of one job, and their memory, side by side."""

    def __init__(self, ranks: int) -> None:
        self.world_size = ranks
        self.logs = [TraceBuilder(rank, world_size=ranks) for rank in range(ranks)]
        self.rows: list[dict[str, list[dict[str, Any]]]] = [
            {record.name: [] for record in (MEMORY, HOLDER, SAVED, PEAK, DOING)} for _ in range(ranks)
        ]
        self.steps = 0
        self._ends: dict[int, RankEnd] = {}

    def trains(self, steps: int, *, only: Sequence[int] | None = None, **columns: Number) -> Self:
        """So many steps more. Columns of `layout.MEMORY`: one number, one for each rank, or `f(rank, step)`."""
        for _ in range(steps):
            self.steps += 1
            for rank in range(self.world_size) if only is None else only:
                log = self.logs[rank]
                own = {name: _value(number, rank, self.steps) for name, number in columns.items()}
                known = {"rss": 400 * MIB, "device": -1, "site": log.text(site_of(STEP_LINE))}
                self._append(rank, "memory", **{**known, **own}, step=self.steps, at_ns=log.at(None))
                log.step(site=STEP_LINE)
        return self

    def holds(
        self,
        label: str,
        site: str,
        looks: Mapping[int, Mapping[str, int]],
        *,
        kind: str = "list",
        flags: int = 0,
        only: Sequence[int] | None = None,
    ) -> Self:
        """A variable that was looked at after some steps. Fields are those of `layout.HOLDER`."""
        for rank in range(self.world_size) if only is None else only:
            text = self.logs[rank].text
            about = {"label": text(label), "kind": text(kind), "site": text(site_of(site)), "flags": int(flags)}
            for step, fields in looks.items():
                self._append(rank, "holders", **{"tensors": 1, "length": 1, **about, **fields}, step=step)
        return self

    def keeps(self, step: int, modules: Mapping[str, tuple[int, str, str]]) -> Self:
        """What modules keep for backward in one step: path -> (bytes, class, line)."""
        for rank in range(self.world_size):
            text = self.logs[rank].text
            for path, (size, owner, site) in modules.items():
                about = {"path": text(path), "owner": text(owner), "site": text(site_of(site))}
                self._append(rank, "saved", step=step, bytes=size, nodes=1, **about)
        return self

    def peaks(self, step: int, phases: Mapping[Phase, int], *, buckets: int = 0) -> Self:
        """Highest resident memory of the phases of one step."""
        for rank in range(self.world_size):
            for phase, size in phases.items():
                self._append(rank, "peaks", step=step, peak=size, rss=size, phase=int(phase), buckets=buckets)
        return self

    def note(self, event: TraceEvent, *, only: Sequence[int] | None = None, site: str = "") -> Self:
        """One of the rare things, on every rank or on `only`."""
        for rank in range(self.world_size) if only is None else only:
            self.logs[rank].note(event, site=site)
        return self

    def fails(self, rank: int, words: str, site: str, *, kills: int | None = None) -> Self:
        """This rank ends with an uncaught exception, and the launcher ends the others; for `kills` see `is_killed`."""
        log = self.logs[rank]
        log.note(UncaughtException((words,), f"rank-{rank:05d}.a0.traceback.txt"), site=site)
        log.note(Exiting(after_exception=True))
        now = log.now
        self._ends = {r: RankEnd(None, 15, ended_by_launcher=True, at_ns=now + 1) for r in range(self.world_size)}
        self._ends[rank] = RankEnd(1, at_ns=now, kernel_kills=kills)
        return self

    def is_killed(
        self, rank: int, phase: Phase, site: str, *, kills: int | None, limit: int = 0, seen_at: str = ""
    ) -> Self:
        """SIGKILL ends this rank in that phase, begun at `site`; the kernel counts `kills` for lack of memory. `seen_at` is its
        line half a second before."""
        log = self.logs[rank]
        self._append(rank, "doing", step=self.steps, phase=int(phase), site=log.text(site_of(site)), at_ns=log.at(None))
        now = log.at(None)
        self._ends = {r: RankEnd(None, 15, ended_by_launcher=True, at_ns=now + 1) for r in range(self.world_size)}
        counter = "/sys/fs/cgroup/memory.events" if kills is not None else ""
        line = site_of(seen_at) if seen_at else ""
        self._ends[rank] = RankEnd(None, 9, False, now, kills, limit, counter, line, 500_000_000 if line else 0)
        return self

    def _append(self, rank: int, section: str, /, **fields: Any) -> None:
        rows = self.rows[rank][section]
        row: dict[str, Any] = dict.fromkeys(RECORDS[section].offsets, 0)
        rows.append({**row, **fields, "seq": len(rows) + 1, "end": len(rows) + 1})

    def recording(self, *, sources: Mapping[str, str] | None = None) -> Recording:
        """What would have been read of this job."""
        logs = {}
        for log in self.logs:
            more = {}
            for name, rows in self.rows[log.rank].items():
                made = np.zeros(len(rows), dtype_of(RECORDS[name]))
                for at, row in enumerate(rows):
                    for field, value in row.items():
                        made[field][at] = value
                more[name] = made
            logs[log.rank] = replace(log.build(), more=more)
        job = Job(argv=("train.py",), world_size=self.world_size, ends=self._ends, exit_code=1 if self._ends else None)
        return Recording(job, noting_sources(logs, sources or {}), sources=sources or {})


def _value(number: Number, rank: int, step: int) -> int:
    if callable(number):
        return int(number(rank, step))
    return int(number[rank] if isinstance(number, Mapping) else number)


def memory_job(ranks: int = 2) -> MemoryJob:
    """A job that has not trained yet."""
    return MemoryJob(ranks)


def job_on_device(held: Mapping[str, int], *, peak: int) -> Recording:
    """Two ranks that train on devices of 8,000 MiB. `held`: columns of `layout.MEMORY` in MiB; `peak` of the allocator in MiB."""
    columns: dict[str, Any] = {name: size << 20 for name, size in held.items()}
    job = memory_job(2).trains(4, device=0, capacity=8_000 << 20, peak=peak << 20, **columns)
    return job.recording()
