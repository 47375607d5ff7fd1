"""Loaders whose workers are started anew for each pass: what they had read or kept is gone, and the pass begins with a wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distdoctor.recording.recording import RankTrace, SourceLine
from distdoctor.recording.trace.layout import PassFlag

FEWEST = 3  # passes after the first one
LONG_NS = 0.3e9  # a wait at the beginning of each, above what it takes to start a few processes
TOTAL_NS = 2e9
SHARE = 0.3  # of the passes
AHEAD = 2  # batches that each worker makes at once: prefetch_factor's default


@dataclass(frozen=True)
class RestartedWorkers:
    """`passes` of one loader whose workers were new in each; `waited_ns` (median) is what the first batches of a pass took, of
    `pass_ns` (median). `loader_anew`: the workers were asked to live on, but the loader was made anew for each pass."""

    made_at: SourceLine
    loop: SourceLine
    workers: int
    passes: int
    waited_ns: float
    pass_ns: float
    loader_anew: bool

    @property
    def share(self) -> float:
        return self.waited_ns / self.pass_ns


def restarted_workers(log: RankTrace) -> RestartedWorkers | None:
    """Of the loader that trains; None where its workers live on, or waiting for the first batches is no large part of a pass."""
    rows = [row for row in log.passes if row["workers"] and row["ended_ns"] and row["flags"] & PassFlag.STEPPED]
    times = log.rows("times")
    if not rows or not len(times):
        return None
    own = [row for row in rows if row["loader"] == rows[-1]["loader"] and row["loop_site"] == rows[-1]["loop_site"]][1:]
    if len(own) < FEWEST or not all(row["flags"] & PassFlag.STARTED for row in own):
        return None
    waited = np.array([_waited_first(times, row) for row in own])
    took = np.array([float(row["ended_ns"] - row["started_ns"]) for row in own])
    if waited.sum() < max(TOTAL_NS, SHARE * took.sum()) or np.median(waited) < LONG_NS:
        return None
    last = own[-1]
    return RestartedWorkers(
        log.site(int(last["made_site"])),
        log.site(int(last["loop_site"])),
        int(last["workers"]),
        len(own),
        float(np.median(waited)),
        float(np.median(took)),
        bool(last["flags"] & PassFlag.PERSISTENT),
    )


def _waited_first(times: Any, row: Any) -> float:
    """Nanoseconds that the steps of a pass waited for the batches that its workers had to make before any was ahead."""
    inside = times[(times["at_ns"] > row["started_ns"]) & (times["at_ns"] <= row["ended_ns"])]
    return float(inside["data_ns"][: AHEAD * int(row["workers"])].sum())
