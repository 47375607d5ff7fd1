"""Where the time of the steps went, rank by rank: the table that ends every run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from distdoctor.diagnosis.speed.step_times import PHASES, WORTH_A_COLUMN, StepTimes, step_times
from distdoctor.recording.rank_set import compress
from distdoctor.recording.recording import Recording
from distdoctor.report.table import Table, milliseconds

MOST_RANKS = 8  # shown one by one; of more only those that stand out
ENOUGH_STEPS = 4  # to say what a rank needs in each of them


def step_table(recording: Recording) -> Table | None:
    """Medians by rank and phase, in nanoseconds; None where no rank made enough steps to tell, or none computed anything in them
    (loaders were only read)."""
    times = step_times(recording)
    if not any(one.forward > 0 or one.backward > 0 for one in times):
        return None
    phases = [phase for phase in PHASES if _is_worth(phase, times)]
    chosen = times if len(times) <= MOST_RANKS else _outstanding(times)
    rows = [(str(one.rank), one) for one in chosen]
    if len(chosen) < len(times):
        rows.insert(0, (f"all {len(times)}", _middle(times)))
    steps = min(one.steps for one in times)
    title = f"step times, medians of {steps} step{'s' if steps > 1 else ''} behind the first ones"
    notes = () if all(one.on_cpu for one in times) else ("  on a device: what Python spent there, not the work itself",)
    return Table(
        "step_times",
        title,
        ("rank", "step", *phases),
        tuple((one.rank, *map(_whole, (one.step, *(one.of(phase) for phase in phases)))) for one in times),
        tuple((name, milliseconds(one.step), *(_share(one, phase) for phase in phases)) for name, one in rows),
        (*notes, *_slowest(times)),
    )


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else round(value)


def _is_worth(phase: str, times: Sequence[StepTimes]) -> bool:
    return phase != "other" or any(one.other > WORTH_A_COLUMN * one.step for one in times)


def _share(one: StepTimes, phase: str) -> str:
    """`12.3 ms 40%`."""
    value = one.of(phase)
    if math.isnan(value) or not one.step:
        return "-"
    return f"{milliseconds(value)} {value / one.step:3.0%}"


def _outstanding(times: Sequence[StepTimes]) -> list[StepTimes]:
    """The ranks that need most for themselves, and those that wait most."""
    slow = sorted(times, key=lambda one: -one.own)[: MOST_RANKS // 2]
    waiting = sorted(times, key=lambda one: -(0.0 if math.isnan(one.waiting) else one.waiting))[: MOST_RANKS // 2]
    return sorted({one.rank: one for one in (*slow, *waiting)}.values(), key=lambda one: one.rank)


def _middle(times: Sequence[StepTimes]) -> StepTimes:
    """A rank in the middle of all."""
    return sorted(times, key=lambda one: one.step)[len(times) // 2]


def _slowest(times: Sequence[StepTimes]) -> tuple[str, ...]:
    """Whom the others wait for, where one rank needs clearly more than the others, and a column shows most of it."""
    if len(times) < 2 or min(one.steps for one in times) < ENOUGH_STEPS:
        return ()
    ordered = sorted(times, key=lambda one: one.own)
    most, middle = ordered[-1], ordered[(len(ordered) - 1) // 2]
    if most.own < 1.1 * middle.own or most.own - middle.own < 1e6:
        return ()
    more = {phase: most.of(phase) - middle.of(phase) for phase in PHASES if phase != "waiting"}
    phase = max(more, key=lambda name: -1.0 if math.isnan(more[name]) else more[name])
    if not more[phase] >= (most.own - middle.own) / 2:
        return ()
    waits = [one.rank for one in times if one.waiting > 0.1 * one.step and one is not most]
    who = f"; ranks {compress(waits)} wait" if len(waits) > 1 else f"; rank {waits[0]} waits" if waits else ""
    where = "outside of these phases" if phase == "other" else f"in {phase}"
    return (f"  rank {most.rank} needs {milliseconds(most.own - middle.own)} more of each step, most {where}{who}",)
