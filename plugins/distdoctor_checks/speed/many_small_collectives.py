"""
DD508 many-small-collectives: one line all-reduces many small tensors one by one in every step.

What it means    A loop calls all_reduce for each parameter or each metric. Every call costs a round trip, whatever its size,
                 including calls on single numbers that are only displayed.
Why it hurts     The time goes into latency: n round trips where one could carry all the bytes.
How we know      One line makes at least eight calls in each step, each of at most 256 KiB, with almost nothing between them; or
                 at least two calls on single numbers in every step. The time in them, counted from the arrival of the last
                 rank, plus barriers of the same line, is at least 5 % of a step, for single numbers 15 %.
What to do       Reduce one flat tensor, or let DistributedDataParallel reduce buckets during backward.
When it is fine  Calls that need the result of the previous one (tensor parallelism): with computation between them, by the
                 forward of a module or of an autograd.Function, or by Python code while backward is running, except where the
                 line takes the gradients of parameters (`.grad`).
Source           torch/nn/parallel/distributed.py: buckets of 25 MiB, "to hide latency".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, Finding, Place, Prescription
from distdoctor.diagnosis.hang.call_chains import chains
from distdoctor.diagnosis.source.in_forward import is_in_forward
from distdoctor.diagnosis.source.reduced_gradients import reduces_gradients
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.timing import FEWEST, MILLISECOND, Arrivals, Timing
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import CallFlag, Op
from distdoctor.testing.timing import Meeting, timed_job

MANY, SMALL = 8, 256 * 1024  # calls per step; bytes each
SCALAR, FEW = 16, 2  # bytes: one or two numbers; so many calls a step are told (one, of the loss, is everybody's habit)
SHARE, SCALAR_SHARE = 0.05, 0.15  # of a step; a single number may be needed, so it has to cost more to be told
EACH = 0.9  # of all steps
_BARRIERS = (Op.BARRIER, Op.MONITORED_BARRIER)
BETWEEN = 0.5  # of the time of a call: more between two of them is work that needs the first one's result


@check("DD508", "many-small-collectives", severity=NOTE, live=False)
def examine(timing: Timing) -> Iterator[Finding]:
    for arrivals in timing.arrivals:
        rows = arrivals.rows[0]
        plain = arrivals.blocking & (rows["op"] == Op.ALL_REDUCE) & ((rows["flags"] & CallFlag.OBJECT) == 0)
        plain &= (arrivals.left > 0).all(axis=0) & (rows["nbytes"] <= SMALL)
        regular = timing.ranks[arrivals.ranks[0]].steps
        plain &= np.isin(arrivals.steps, regular)
        for site in np.unique(rows["site"][plain]):
            barriers = np.isin(rows["op"], _BARRIERS) & arrivals.blocking & (arrivals.left > 0).all(axis=0)
            barriers &= (rows["site"] == site) & np.isin(arrivals.steps, regular)
            mine = np.flatnonzero(plain & (rows["site"] == site))
            finding = _finding(timing, arrivals, mine, np.flatnonzero(barriers)) if site else None
            if finding is not None:
                yield finding


def _finding(timing: Timing, arrivals: Arrivals, mine: Any, barriers: Any) -> Finding | None:
    steps, counts = np.unique(arrivals.steps[mine], return_counts=True)
    scalars = bool((arrivals.rows[0]["nbytes"][mine] <= SCALAR).all()) and len(steps) >= EACH * timing.steps
    if len(steps) < FEWEST or np.median(counts) < (FEW if scalars else MANY):
        return None
    took = _took(arrivals, mine)
    if not scalars and np.median(_between(arrivals, mine)) > BETWEEN * np.median(took):
        return None
    waited = _took(arrivals, barriers)
    each = RobustMedian.of(
        [
            float(took[arrivals.steps[mine] == step].sum() + waited[arrivals.steps[barriers] == step].sum())
            for step in steps
        ]
    )
    if each.value < (SCALAR_SHARE if scalars else SHARE) * timing.step_ns:
        return None
    site = arrivals.site(arrivals.ranks[0], int(mine[0]))
    if not site or _depend(timing, arrivals, mine, site):
        return None
    count = int(np.median(counts))
    nbytes = int(
        np.median([int(arrivals.rows[0]["nbytes"][mine][arrivals.steps[mine] == step].sum()) for step in steps])
    )
    milliseconds = each.value / MILLISECOND
    size = f"{nbytes / 1024:.0f} KiB" if nbytes >= 1024 else f"{nbytes:.0f} bytes"
    return Finding(
        title=f"{_calls(count, nbytes)} in each step: {milliseconds:.2f} ms of {timing.step_ns / MILLISECOND:.1f}",
        ranks=arrivals.ranks,
        confidence=POSSIBLE if scalars else LIKELY,
        place=site,
        places=(Place(site, arrivals.ranks, f"all_reduce, {count} times a step"),),
        evidence={
            "calls_per_step": count,
            "bytes_per_step": nbytes,
            "seconds_per_step": round(milliseconds / 1e3, 6),
            "share_of_step": round(each.value / timing.step_ns, 3),
            "steps": len(steps),
        },
        why=f"{milliseconds:.1f} of {timing.step_ns / MILLISECOND:.1f} ms a step, {milliseconds / count:.2f} ms per call; "
        f"a single call for all {size} costs little more than one of them",
        prescriptions=(_prescription(count, milliseconds, scalars=scalars),),
    )


def _prescription(count: int, milliseconds: float, *, scalars: bool) -> Prescription:
    if scalars:
        return Prescription("reduce-now-and-then", effect=f"up to {milliseconds:.2f} ms a step")
    return Prescription("reduce-at-once", effect=f"up to {milliseconds * (count - 1) / count:.1f} ms a step")


def _depend(timing: Timing, arrivals: Arrivals, mine: Any, site: SourceLine) -> bool:
    """Whether the tensors are made one from the other: activations in forward, their gradients in backward."""
    sources, track = timing.recording.sources, arrivals.group.tracks[arrivals.ranks[0]]
    ways = [
        way for way in chains([track]).values() if way[0][0] == site.path and way[0][1][0] <= site.line <= way[0][1][1]
    ]
    callers = {SourceLine(path, span[0], function) for way in ways for path, span, function in way[1:]}
    if any(is_in_forward(sources, one) for one in (site, *callers)):
        return True
    times = timing.ranks[track.rank]
    at = np.searchsorted(times.steps, arrivals.steps[mine])
    entered = arrivals.at[0, mine]
    inside = (entered >= times.of("forward_ended_ns")[at]) & (entered < times.of("backward_ended_ns")[at])
    steps = np.unique(arrivals.steps[mine])  # of several passes in a step only the last one is on record
    often = len(np.unique(arrivals.steps[mine][inside])) >= EACH * len(steps)
    return often and not reduces_gradients(sources, site)


def _took(arrivals: Arrivals, mine: Any) -> Any:
    """Nanoseconds in each call once everybody is there."""
    return np.maximum(0.0, arrivals.left[:, mine].max(axis=0) - arrivals.at[:, mine].max(axis=0))


def _between(arrivals: Arrivals, mine: Any) -> Any:
    """Nanoseconds between one call and the next of the same step."""
    between = arrivals.at[:, mine][:, 1:].min(axis=0) - arrivals.left[:, mine][:, :-1].max(axis=0)
    return between[np.diff(arrivals.steps[mine]) == 0]


def _calls(count: int, nbytes: int) -> str:
    if nbytes <= SCALAR * count:
        return f"{count} all_reduce calls on single numbers"
    return f"{count} all_reduce calls, {nbytes / count / 1024:.1f} KiB on average, one after another"


def sick() -> Recording:
    return timed_job(2).steps(30, meetings=[Meeting("all_reduce", (32,), takes=0.3)] * 20).recording()


def healthy() -> Recording:
    """Tensor parallelism reduces as often, and computes between one call and the next."""
    return timed_job(2).steps(30, meetings=[Meeting("all_reduce", (32,), takes=0.3, after=1.0)] * 20).recording()
