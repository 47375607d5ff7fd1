"""
DD511 needless-barriers: every step calls a barrier that its other collectives make needless, or sends what need not be sent.

What it means    The same line calls barrier in each step. In the same step the same ranks average gradients or reduce a metric,
                 so no rank can get a step ahead of another even without the barrier. Or DistributedDataParallel sends rank 0's
                 buffers to all before each forward, and they are constants: masks, tables of positions. Or outputs are
                 pickled and gathered on every rank in each step, of which a metric needs counts.
Why it hurts     Each barrier costs a round trip and removes the slack in which a rank that is late once could catch up.
How we know      A barrier at the user's line in nine steps of ten, plus another collective of the same group that no rank
                 leaves before all have arrived. The cost is the time in the barrier after the last rank arrived; time spent
                 waiting for each other would mostly move to the next collective. Buffers: the digests of all of them were the
                 same after each step that was looked at, and a step's broadcasts have as many bytes as its gradients. Objects:
                 by all_gather_object at one line, in nine steps of ten, 1 MiB and more of each rank, or 16 KiB and more in
                 steps of which a fifth passes outside of loading, forward, backward and optimizer.
What to do       Remove the barrier from the step. Barriers are for effects that collectives do not order: rank 0 writes a file
                 that others read. Keep constants as plain tensors, or pass broadcast_buffers=False.
When it is fine  Barriers around checkpoints, downloads and evaluations, and in jobs of fewer than 20 steps.
Source           torch.distributed.barrier; collectives of one group run in the order in which they were issued.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import LIKELY, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.memory.memory import mib
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients
from distdoctor.diagnosis.source.call_edits import only_call
from distdoctor.diagnosis.source.statement_edits import dropped, statement_of, wrapper_told
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.step_times import StepTimes, step_times
from distdoctor.diagnosis.speed.timing import FEWEST, MILLISECOND, Arrivals, Timing
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Wrapped
from distdoctor.recording.trace.layout import CallFlag, Op, TensorFlag
from distdoctor.testing.timing import Meeting, timed_job

EACH = 0.9  # of the steps
LOOKS = 4  # at buffers
MOST_BUFFERS = 256  # that are looked at (`probe.gradients.buffers`): of more, some may change
LEAST_BYTES = 1 << 20  # a step
FEW_BYTES = 1 << 14  # a step: of less, pickling takes some microseconds
OUTSIDE = 0.2  # of a step
_BESIDE = TensorFlag.BUFFER | TensorFlag.COPY | TensorFlag.PLAIN  # copies and attributes of other objects are not sent


@check("DD511", "needless-barriers", severity=NOTE, live=False)
def examine(timing: Timing | None, gradients: Gradients | None, sources: Sources) -> Iterator[Finding]:
    if timing is not None:
        yield from _barriers(timing, sources)
    if gradients is not None:
        yield from _constants_sent(gradients, sources)
        yield from _objects_gathered(gradients, step_times(timing.recording) if timing is not None else ())


def _objects_gathered(gradients: Gradients, times: Sequence[StepTimes]) -> Iterator[Finding]:
    """What is pickled and gathered from every rank in each step, as a metric over all rows would have it."""
    outside = {one.rank: one.other for one in times if one.step and one.other >= OUTSIDE * one.step}
    found: dict[SourceLine, dict[int, tuple[int, int]]] = defaultdict(dict)
    for rank, own in gradients.ranks.items():
        calls, steps = own.log.calls, len(own.log.steps) - 1
        objects = calls[(calls["step"] > 0) & (calls["flags"] & CallFlag.OBJECT != 0) & (calls["op"] == Op.ALL_GATHER)]
        for site in np.unique(objects["site"]).tolist():
            mine = objects[objects["site"] == site]
            hit = len(np.unique(mine["step"]))
            each = int(mine["nbytes"].sum(dtype=np.uint64)) // max(1, hit)
            least = FEW_BYTES if rank in outside else LEAST_BYTES
            if steps >= FEWEST and hit >= EACH * steps and each >= least:
                found[own.log.site(site)][rank] = each, hit
    for site, by_rank in found.items():
        ranks = tuple(sorted(by_rank))
        each, hit = max(by_rank.values())
        if not site or len(ranks) < 2:
            continue
        spent = max((outside.get(rank, 0.0) for rank in ranks), default=0.0) / MILLISECOND
        yield Finding(
            title=f"each step pickles {mib(each)} on each of {named(ranks)} and gathers it on all of them",
            ranks=ranks,
            confidence=LIKELY,
            place=site,
            places=(Place(site, ranks, "gathers objects"),),
            evidence={"bytes_per_step": each, "steps": hit},
            why=f"in {hit} steps; every rank gets {mib(each * len(ranks))}, unpickles it, and computes from it what the others "
            "compute as well"
            + (f"; {spent:.1f} ms of each step pass outside of forward, backward and optimizer" if spent else ""),
            prescriptions=(
                Prescription(
                    "reduce-now-and-then",
                    change="keep counts and sums on each rank and all_reduce them when the metric is asked for; where rows are "
                    "needed, gather tensors (all_gather_into_tensor)",
                    effect=f"{mib(each * len(ranks))} less a step for each rank",
                ),
            ),
        )


def _constants_sent(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    """Buffers that a wrapper sends before each forward, and that no step changes."""
    for rank, own in sorted(gradients.ranks.items()):
        wrapped = next((one for one in own.events(Wrapped) if one.broadcasts_buffers), None)
        sent = _sent_in_each_step(own) if wrapped is not None and len(wrapped.ranks) > 1 else None
        if wrapped is None or sent is None or rank != min(wrapped.ranks):
            continue
        bytes_sent, averaged, steps = sent
        names = _constant_buffers([gradients.ranks[one] for one in wrapped.ranks if one in gradients.ranks])
        if not names or bytes_sent < max(LEAST_BYTES, averaged):
            continue
        shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        times = f", {bytes_sent / averaged:.1f} times the bytes of its gradients" if averaged else ""
        yield Finding(
            title=f"each step sends {mib(bytes_sent)} of buffers from rank {rank} to all, and nothing ever changes them",
            ranks=wrapped.ranks,
            confidence=LIKELY,
            place=wrapped.site,
            places=(Place(wrapped.site, wrapped.ranks, "broadcasts buffers before each forward"),),
            evidence={"bytes_per_step": bytes_sent, "gradient_bytes_per_step": averaged, "buffers": len(names)},
            why=f"{shown}: the same after each step that was looked at; sent in {steps} steps{times}",
            prescriptions=(
                Prescription(
                    "keep-constants-unsent",
                    edits=wrapper_told(sources.texts, wrapped.site, "broadcast_buffers", "False"),
                    effect=f"{mib(bytes_sent)} less a step for each rank",
                ),
            ),
        )


def _sent_in_each_step(own: RankGradients) -> tuple[int, int, int] | None:
    """(bytes that C++ broadcasts in a step, bytes that it averages in one, steps); None where it sends none in most steps."""
    calls = own.log.calls
    native = calls[(calls["step"] > 0) & (calls["flags"] & CallFlag.NATIVE != 0)]
    sends = native[native["op"] == Op.BROADCAST]
    steps = len(own.log.steps) - 1
    hit = np.unique(sends["step"])
    if steps < FEWEST or len(hit) < EACH * len(np.unique(native["step"])):
        return None
    averages = native[native["op"] == Op.ALL_REDUCE]
    each = int(sends["nbytes"].sum(dtype=np.uint64)) // len(hit)
    return each, int(averages["nbytes"].sum(dtype=np.uint64)) // max(1, len(np.unique(averages["step"]))), len(hit)


def _constant_buffers(ranks: Sequence[RankGradients]) -> list[str]:
    """The names of all buffers of modules, where no look found another value in any; else none."""
    names: list[str] = []
    for own in ranks:
        held = [one for one in own.tensors.values() if one.flags & _BESIDE == TensorFlag.BUFFER]
        looks = [own.digests(one.step, one.optimizer) for one in own.updates if one.digested]
        for buffer in held:
            seen = [int(look[buffer.name]["param"]) for look in looks if buffer.name in look]
            if len(seen) < LOOKS or len(set(seen)) > 1:
                return []
        names = [one.name for one in held]
    return names if len(names) < MOST_BUFFERS else []


def _barriers(timing: Timing, sources: Sources) -> Iterator[Finding]:
    for arrivals in timing.arrivals:
        rows = arrivals.rows[0]
        is_barrier = np.isin(rows["op"], (Op.BARRIER, Op.MONITORED_BARRIER))
        steps = _regular(timing, arrivals, ~is_barrier)
        if len(steps) < FEWEST:
            continue
        for site in np.unique(rows["site"][is_barrier]):
            if (~is_barrier & (rows["site"] == site)).any():
                continue  # a library's reduction that begins with a barrier: DD508 counts both
            mine = is_barrier & (rows["site"] == site)
            finding = _finding(timing, arrivals, mine, steps) if site else None
            if finding is not None:
                yield _with_edit(finding, sources)


def _regular(timing: Timing, arrivals: Arrivals, others: Any) -> set[int]:
    """The steps in which this group meets otherwise as well."""
    known = set(timing.ranks[arrivals.ranks[0]].steps.tolist())
    return known & set(arrivals.steps[others].tolist())


def _finding(timing: Timing, arrivals: Arrivals, mine: Any, steps: set[int]) -> Finding | None:
    inside = mine & np.isin(arrivals.steps, list(steps))
    hit = set(arrivals.steps[inside].tolist())
    if len(hit) < EACH * len(steps):
        return None
    each = round(float(inside.sum()) / len(hit))
    came, left = arrivals.at[:, inside], arrivals.left[:, inside]
    over = np.where((left > 0).all(axis=0), left.max(axis=0) - came.max(axis=0), np.nan)
    cost = RobustMedian.of(_per_step(arrivals.steps[inside], over))
    waited = RobustMedian.of(_per_step(arrivals.steps[inside], came.max(axis=0) - came.min(axis=0)))
    site = arrivals.site(arrivals.ranks[0], int(np.flatnonzero(inside)[0]))
    if not site:
        return None
    milliseconds = cost.value / MILLISECOND
    return Finding(
        title=f"{_times(each)} in each step, although other collectives already synchronize the same ranks",
        ranks=arrivals.ranks,
        confidence=LIKELY,
        place=site,
        places=(Place(site, arrivals.ranks, "barrier"),),
        evidence={
            "barriers_per_step": each,
            "seconds_per_step": round(milliseconds / 1e3, 6),
            "waited_for_the_last_seconds_per_step": round(waited.value / 1e9, 6),
            "steps": len(hit),
        },
        why=f"in {len(hit)} of {len(steps)} steps; {milliseconds:.2f} ms a step in the barrier after all ranks arrived, and "
        f"{waited.value / MILLISECOND:.2f} ms waiting for the last rank, most of which would move to the next collective",
        prescriptions=(Prescription("drop-barriers", effect=f"at least {milliseconds:.2f} ms a step"),),
    )


def _with_edit(finding: Finding, sources: Sources) -> Finding:
    """With the barrier taken out of the source, where it is a statement by itself among others."""
    site, texts = finding.place, sources.texts
    call = only_call(texts, site, "barrier", "monitored_barrier")
    statement = statement_of(texts, site, call) if call is not None else None
    edits = dropped(texts, site.path, statement) if statement is not None else ()
    return replace(finding, prescriptions=tuple(replace(one, edits=edits) for one in finding.prescriptions))


def _per_step(steps: Any, nanoseconds: Any) -> list[float]:
    return [float(nanoseconds[steps == step].sum()) for step in np.unique(steps)]


def _times(count: int) -> str:
    return "a barrier" if count <= 1 else f"{count} barriers"


def sick() -> Recording:
    return timed_job(2).steps(30, meetings=[Meeting("barrier")]).recording()


def healthy() -> Recording:
    """A barrier after each tenth step."""
    job = timed_job(2)
    for _ in range(4):
        job.steps(9).steps(1, meetings=[Meeting("barrier")])
    return job.recording()
