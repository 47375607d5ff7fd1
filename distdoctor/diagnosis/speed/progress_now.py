"""How far each rank of a running job is, how fast it goes, and what it is in at this moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.recording.recording import Call, RankTrace, Recording

RECENT = 20  # steps that the speed is taken from


@dataclass(frozen=True)
class RankProgress:
    """One rank. `step_seconds`: median of the latest steps, NaN before the second one. `samples_per_second`: of the loader that
    trains, NaN where none is recorded. `memory`: bytes, 0 where it is not recorded; on the device where there is one. `call`: the
    newest, `in_call`: it has not returned, or members of its group (`awaits`) have not come to it. `seconds`: for how long it has
    been in that call, or since its last sign of life; 0 where the job is over."""

    rank: int
    step: int
    step_seconds: float
    samples_per_second: float
    memory: int
    call: Call | None
    in_call: bool
    seconds: float
    awaits: tuple[int, ...]


@dataclass(frozen=True)
class ProgressNow:
    """All ranks, the lowest first."""

    ranks: tuple[RankProgress, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        facts = derived(Collectives, recording)
        return cls(tuple(_progress(facts, rank) for rank in sorted(recording.ranks)))

    @property
    def awaited(self) -> tuple[int, ...]:
        """Ranks that others wait for and that wait for nobody themselves."""
        waiting = {one.rank for one in self.ranks if one.awaits}
        return tuple(sorted({rank for one in self.ranks for rank in one.awaits} - waiting))


def _progress(facts: Collectives, rank: int) -> RankProgress:
    timeline = facts.timelines[rank]
    log, now = timeline.log, facts.now_ns(timeline)
    call = log.call(log.calls[-1]) if len(log.calls) else None
    awaits = _awaited(facts, call) if call is not None and now else ()
    in_call = call is not None and bool(now) and (not call.returned_ns or bool(awaits))
    since = call.entered_ns if call is not None and in_call else timeline.last_ns
    return RankProgress(
        rank,
        int(log.steps["step"][-1]) if len(log.steps) else 0,
        _step_seconds(log),
        _samples_per_second(log, now),
        _memory(log),
        call,
        in_call,
        max(0.0, (now - since) / 1e9) if now else 0.0,
        awaits,
    )


def _step_seconds(log: RankTrace) -> float:
    times = np.diff(log.steps["at_ns"][-RECENT - 1 :])
    return float(np.median(times)) / 1e9 if len(times) else float("nan")


def _samples_per_second(log: RankTrace, now: int) -> float:
    """Of the pass that runs, or ran last, while an optimizer stepped."""
    training = log.passes[log.passes["optimizer"] > 0][-1:]
    for one in training:
        seconds = ((int(one["ended_ns"]) or now) - int(one["started_ns"])) / 1e9
        return int(one["drawn"]) / seconds if seconds > 0 else float("nan")
    return float("nan")


def _memory(log: RankTrace) -> int:
    for row in log.rows("memory")[-1:]:
        return int(row["allocated"]) if int(row["device"]) >= 0 else int(row["rss"])
    return 0


def _awaited(facts: Collectives, call: Call) -> tuple[int, ...]:
    """Members of the call's group that have not issued it. Of point to point nothing is said here."""
    group = facts.group_of(call)
    if group is None or call.root >= 0:
        return ()
    return tuple(rank for rank, count in sorted(group.counts.items()) if count < call.number)
