"""One rank that works alone for long now and then, while the others wait: an evaluation, a picture, a large checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.speed.timing import ALWAYS, SECOND, WARM_UP, Arrivals, uses_devices
from distdoctor.recording.recording import SourceLine

FEWEST = 3  # pauses
SHORTEST_NS = 0.2 * SECOND
TIMES_A_STEP = 4.0  # that one takes, at least
MANY, TIMES_OF_MANY = 8, 2.0  # the same of many, which say something of a short run too
WORTH_SECONDS = 5.0  # in all
WORTH_SHARE = 0.15  # of the time in which the job made steps
SHORTEST_RUN_SECONDS = 10.0  # that such a share says something of


@dataclass(frozen=True)
class Pauses:
    """`others` waited `total_seconds` of `run_seconds` for `rank`, in `count` of `steps` steps: `each_seconds` (median) after
    every `every` steps (0: no rhythm). `site`: where it came late."""

    rank: int
    others: tuple[int, ...]
    count: int
    steps: int
    each_seconds: float
    total_seconds: float
    run_seconds: float
    every: int
    site: SourceLine
    on_cpu: bool


def pauses(facts: Collectives, arrivals: Iterable[Arrivals]) -> Pauses | None:
    """Those that cost most, of one rank."""
    found = [one for met in arrivals if (one := _in(met, facts))]
    return max(found, key=lambda one: one.total_seconds, default=None)


def _in(met: Arrivals, facts: Collectives) -> Pauses | None:
    return _of(met, facts, TIMES_A_STEP, FEWEST) or _of(met, facts, TIMES_OF_MANY, MANY)


def _of(met: Arrivals, facts: Collectives, times_a_step: float, fewest: int) -> Pauses | None:
    ends = facts.timelines[met.ranks[0]].log.steps["at_ns"].astype(np.int64)
    by_step = {step: late for step, late in met.lateness().items() if step > WARM_UP}
    if len(by_step) < fewest or len(ends) <= WARM_UP:
        return None
    steps, table = np.array(sorted(by_step)), np.stack([by_step[step] for step in sorted(by_step)])
    long = table > max(SHORTEST_NS, times_a_step * float(np.median(np.diff(ends))))
    long &= np.isin(steps - 1, steps)[
        :, None
    ]  # who comes late to what follows many steps without a meeting may be slow in each
    place = int(np.where(long, table, 0).sum(axis=0).argmax())
    mine, counted = table[:, place][long[:, place]], steps[long[:, place]]
    run_ns = float(ends[-1] - ends[WARM_UP - 1])
    if (
        len(mine) < fewest
        or (run_ns < SHORTEST_RUN_SECONDS * SECOND and len(mine) < MANY)
        or mine.sum() < max(WORTH_SECONDS * SECOND, WORTH_SHARE * run_ns)
        or mine.sum() < ALWAYS * table[long].sum()
    ):
        return None
    apart = set(np.diff(counted).tolist())
    log = facts.timelines[met.ranks[place]].log
    return Pauses(
        rank=met.ranks[place],
        others=tuple(rank for rank in met.ranks if rank != met.ranks[place]),
        count=len(mine),
        steps=int(steps[-1]) - WARM_UP,
        each_seconds=float(np.median(mine)) / SECOND,
        total_seconds=float(mine.sum()) / SECOND,
        run_seconds=run_ns / SECOND,
        every=int(apart.pop()) if len(apart) == 1 else 0,
        site=met.late_at(place, counted.tolist()),
        on_cpu=not uses_devices(log),
    )
