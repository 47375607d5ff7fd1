"""
DD505 exposed-communication: a large part of each step is gradient communication that no computation overlaps.

What it means    DistributedDataParallel sends a bucket as soon as its gradients are ready and continues with backward. Buckets
                 still in flight when backward has nothing left to compute are exposed: all ranks wait for the network.
Why it hurts     More ranks make it worse: the bytes stay the same while compute per rank shrinks.
How we know      Measured from the moment the last rank issued its last bucket to the end of backward, so waiting for a slower
                 rank does not count (that is DD123). The median is at least a quarter of the step, three steps of four reach
                 half of that, and the buckets of a step hold at least 1 MiB.
What to do       Compute more per byte (a larger batch, accumulation under no_sync), send fewer bytes (16-bit gradients with a
                 communication hook), send earlier (bucket_cap_mb if one bucket holds everything), or use a faster link.
When it is fine  Small models on slow links for a short time: below half a second in total nothing is reported. On a device the
                 host does not wait, so nothing is reported there.
Source           torch.nn.parallel.DistributedDataParallel: bucket_cap_mb; ddp_comm_hooks.default_hooks.fp16_compress_hook.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import LIKELY, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.timing import MILLISECOND, Arrivals, RankTimes, Timing
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.testing.timing import timed_job

SHARE = 0.25  # of a step
FEWEST_BYTES = 2**20  # of a step: below, it is latency and not the wire


@check("DD505", "exposed-communication", severity=NOTE, live=False)
def examine(timing: Timing) -> Iterator[Finding]:
    for arrivals in timing.arrivals:
        finding = _finding(timing, arrivals)
        if finding is not None:
            yield finding


def _finding(timing: Timing, arrivals: Arrivals) -> Finding | None:
    rows = arrivals.rows[0]
    native = np.flatnonzero(((rows["flags"] & CallFlag.NATIVE) != 0) & ~arrivals.blocking)
    if not len(native) or not all(timing.ranks[rank].on_cpu for rank in arrivals.ranks):
        return None
    over = _last_bucket(arrivals, native)
    each = {rank: _exposed(timing.ranks[rank], over) for rank in arrivals.ranks}
    exposed = {rank: RobustMedian.of(found) for rank, found in each.items()}
    rank = min(exposed, key=lambda one: exposed[one].value)  # all of them wait at least that long
    least = exposed[rank]
    if not least.count or np.quantile(each[rank], 0.25) < 0.5 * least.value:
        return None  # now and then, not in each step
    steps, counts = np.unique(arrivals.steps[native], return_counts=True)
    nbytes = int(np.median([int(rows["nbytes"][native][arrivals.steps[native] == step].sum()) for step in steps]))
    if nbytes < FEWEST_BYTES or not timing.is_much(least, SHARE):
        return None
    buckets, milliseconds = int(np.median(counts)), least.value / MILLISECOND
    site = arrivals.site(rank, int(native[-1]))
    one = "one bucket holds everything, so nothing is sent before backward ends; " if buckets == 1 else ""
    return Finding(
        title=f"{least.value / timing.step_ns:.0%} of each step is spent waiting for gradient communication: "
        f"{milliseconds:.1f} of {timing.step_ns / MILLISECOND:.1f} ms",
        ranks=arrivals.ranks,
        confidence=LIKELY,
        place=site or timing.step_site(rank),
        places=(Place(site, arrivals.ranks, "backward, which sends these buckets"),),
        evidence={
            "share": round(least.value / timing.step_ns, 3),
            "exposed_seconds_per_step": round(milliseconds / 1e3, 6),
            "bytes_per_step": nbytes,
            "buckets": buckets,
            "deviation_ms": round(least.spread / MILLISECOND, 2),
            "steps": least.count,
        },
        why=f"{one}{nbytes / 2**20:.1f} MiB in {buckets} bucket{'s' if buckets > 1 else ''} a step, "
        f"{nbytes / 2**20 / (milliseconds / 1e3):.0f} MiB/s if all of it is exposed",
        prescriptions=(Prescription("hide-communication", effect=f"up to {milliseconds:.1f} ms a step"),),
    )


def _last_bucket(arrivals: Arrivals, native: Any) -> dict[int, float]:
    """step -> when the last rank issued the last bucket."""
    came = arrivals.at[:, native].max(axis=0)
    return dict(zip(arrivals.steps[native].tolist(), came.tolist(), strict=True))


def _exposed(times: RankTimes, over: dict[int, float]) -> list[float]:
    """What backward lasted beyond that, nanoseconds by step; steps of several passes tell of their last one."""
    ended = times.of("backward_ended_ns")
    pairs = [(over.get(int(step)), end) for step, end in zip(times.steps, ended, strict=True)]
    return [max(0.0, end - since) for since, end in pairs if since is not None]


def sick() -> Recording:
    return timed_job(2).steps(40, forward=10, backward=15, transfer=30, bucket=(1024, 1024)).recording()


def healthy() -> Recording:
    """The same wait for a slower rank, and buckets that leave early."""
    return timed_job(2).steps(40, backward={0: 15, 1: 45}, transfer=2, bucket=(1024, 1024)).recording()
