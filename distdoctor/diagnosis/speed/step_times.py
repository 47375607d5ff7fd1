"""What the steps of each rank went into: data, forward, backward, waiting for others, optimizer; medians.

On a device these are the times that Python spent there: the work itself runs behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.speed.timing import RankTimes, rank_times
from distdoctor.recording.recording import Recording

PHASES = ("data", "forward", "backward", "waiting", "optimizer", "other")
WORTH_A_COLUMN = 0.03  # of a step; less time that no phase accounts for is not shown


@dataclass(frozen=True)
class StepTimes:
    """Medians over the regular steps of one rank, nanoseconds; NaN where a phase cannot be told. `steps`: how many there were."""

    rank: int
    steps: int
    step: float
    data: float
    forward: float
    backward: float
    waiting: float  # for other ranks: in collectives that block, for handles, behind the last bucket of backward
    optimizer: float
    other: float  # what no phase accounts for
    own: float  # of a step without the waiting, what the rank itself needs: whoever needs most is waited for
    on_cpu: bool

    phases: ClassVar[tuple[str, ...]] = PHASES

    def of(self, phase: str) -> float:
        found: float = getattr(self, phase)
        return found


def step_times(recording: Recording) -> tuple[StepTimes, ...]:
    """Of each rank that made regular steps, the lowest rank first."""
    return derived(_OfAllRanks, recording).times


@dataclass(frozen=True)
class _OfAllRanks:
    times: tuple[StepTimes, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        found = (rank_times(log, fewest=1) for log in recording.ranks.values())
        return cls(tuple(_medians(times) for times in sorted(filter(None, found), key=lambda one: one.rank)))


def _medians(times: RankTimes) -> StepTimes:
    wall, data, backward = times.walls, times.of("data_ns"), times.of("backward_ns")
    has_backward = times.of("backwards") > 0
    last_bucket = times.last_bucket
    tail = np.where(last_bucket > 0, times.of("backward_ended_ns") - last_bucket, 0.0) + times.of("earlier_tails_ns")
    parts = {
        "data": data,
        "forward": np.where(has_backward, np.maximum(times.forward, 0.0), np.nan),
        "backward": np.maximum(backward - tail, 0.0),
        "waiting": times.idle + tail,
        "optimizer": times.of("optimizer_ns"),
    }
    known = sum(np.nan_to_num(part) for part in parts.values())
    parts["other"] = np.maximum(wall - known, 0.0)
    parts["own"] = wall - np.nan_to_num(parts["waiting"])
    step, *medians = _medians_of(np.stack([wall, *parts.values()]))
    return StepTimes(times.rank, len(times.steps), step, **dict(zip(parts, medians, strict=True)), on_cpu=times.on_cpu)


def _medians_of(rows: NDArray[np.float64]) -> list[float]:
    """The median of each row without its NaNs, NaN where it holds nothing else. A job has thousands of ranks with seven rows
    each: those of one rank are sorted at once, NaNs to the end."""
    known = rows.shape[1] - np.isnan(rows).sum(axis=1)
    ordered, row = np.sort(rows, axis=1), np.arange(len(rows))
    middle: list[float] = ((ordered[row, (known - 1) // 2] + ordered[row, known // 2]) / 2).tolist()
    return middle
