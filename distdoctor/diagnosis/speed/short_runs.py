"""One rank that keeps the others waiting for seconds: two steps of a run are enough to say so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.speed.timing import ALWAYS, SECOND, Arrivals, Floats, arrivals_of, uses_devices
from distdoctor.recording.recording import SourceLine

FEWEST = 2  # steps; the first of all is left out, where everybody compiles, allocates and connects
WORTH_SECONDS = 1.0  # that the others wait in each of them
WORTH_SHARE = 0.5  # of the step


@dataclass(frozen=True)
class Straggler:
    """A rank for which the others wait `wait_seconds` of `step_seconds` in each of `steps` steps (medians)."""

    rank: int
    others: tuple[int, ...]
    steps: int
    wait_seconds: float
    step_seconds: float
    site: SourceLine
    on_cpu: bool


def straggler(facts: Collectives) -> Straggler | None:
    """The rank for which the others wait most of every step, in a run that is too short for a rhythm."""
    found = [one for group in facts.groups if (met := arrivals_of(group)) is not None and (one := _in(met, facts))]
    return max(found, key=lambda one: one.wait_seconds, default=None)


def _that_count(late: list[Floats]) -> list[Floats]:
    """From the second step on, from the third where enough are left: in the second DDP puts its buckets in another order, and its
    ranks meet for that before they come to the gradients."""
    return late[1:] if len(late) > FEWEST else late


def _in(met: Arrivals, facts: Collectives) -> Straggler | None:
    done = min(len(facts.timelines[rank].log.steps) for rank in met.ranks)
    late, nobody = met.lateness(), np.zeros(len(met.ranks))
    counted = _that_count([late.get(step, nobody) for step in range(2, done + 1)])
    if len(counted) < FEWEST:
        return None
    table = np.stack(counted)  # [steps, members] nanoseconds
    place = int(np.bincount(table.argmax(axis=1)).argmax())
    rank, mine = met.ranks[place], table[:, place]
    log = facts.timelines[rank].log
    step_ns = float(np.median(np.diff(log.steps["at_ns"].astype(np.int64)))) if len(log.steps) > 1 else 0.0
    worth = mine > max(WORTH_SECONDS * SECOND, WORTH_SHARE * step_ns)
    if not step_ns or worth.sum() < FEWEST or worth.mean() < ALWAYS:
        return None
    site = met.late_at(place, range(2, done + 1))
    others = tuple(other for other in met.ranks if other != rank)
    wait = float(np.median(mine)) / SECOND
    return Straggler(rank, others, len(mine), wait, step_ns / SECOND, site, not uses_devices(log))
