"""
DD504 data-bound: ranks wait for their DataLoader, step after step.

What it means    A large part of every step is spent inside `next` of the DataLoader, before anything is computed. If this
                 happens on one rank only, all others wait for that rank in their next collective.
Why it hurts     The hardware is paid for and idle. More or faster devices change nothing.
How we know      The time inside `next` of training loaders, per step, by the rank's own clock: its median is at least 15 % of
                 the step and at least three deviations above zero. Evaluation does not count. Or a note: workers that are new
                 processes in every pass, after which the first batches take 30 % of the pass and more.
What to do       Give the loader workers that prefetch, keep them between epochs, and do the expensive part once in advance. If
                 it is one rank: check its disk, its share of the files, its neighbors on the CPU.
When it is fine  Short jobs, and waits below 3 ms a step or half a second in total, are not reported. The first steps do not
                 count. Where the rank stands in the queue for a core a quarter of the time it is a note: the host is full. So
                 it is where ranks compute on every core: workers would take those. Not where batches sleep, for a disk.
Source           torch.utils.data.DataLoader: num_workers, prefetch_factor, persistent_workers.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.speed.restarted_workers import restarted_workers
from distdoctor.diagnosis.speed.step_times import step_times
from distdoctor.diagnosis.speed.timing import DATA_SHARE, MILLISECOND, RankTimes, Timing
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing.timing import timed_job

CROWDED = 0.25  # of the time in which a thread could run, in the queue for a core
WANTED = 0.1  # the same, where workers and ranks are more than the cores
_WITHOUT_A_CORE = (
    "make batches cheaper: do the expensive part once in advance, and take a batch out of a tensor by one index"
)
MORE = 3.0  # times what the others wait: then it is these ranks, not the loader as such


@check("DD504", "data-bound", severity=WARNING, live=False)
def examine(timing: Timing) -> Iterator[Finding]:
    bound = {rank: times for rank, times in timing.ranks.items() if timing.is_data_bound(rank)}
    if not bound:
        yield from _restarted(timing)
        return
    others = [times.data.value for rank, times in timing.ranks.items() if rank not in bound]
    odd = bool(others) and min(times.data.value for times in bound.values()) >= MORE * max(others)
    ranks = tuple(sorted(bound, key=lambda rank: -bound[rank].data.value))
    if not odd:
        ranks = tuple(sorted(timing.ranks)) if len(bound) > len(timing.ranks) / 2 else tuple(sorted(bound))
    worst = bound[max(bound, key=lambda rank: bound[rank].data.value)]
    share = worst.data.value / timing.step_ns
    milliseconds = worst.data.value / MILLISECOND
    waiting = f", and {named(timing.ranks.keys() - set(ranks))} for it" if odd else ""
    site, made = timing.loop_site(worst.rank), timing.loader_site(worst.rank)
    queued = not worst.on_cpu and not worst.workers  # the device may be at work meanwhile
    full = _is_full(timing, worst, odd=odd)
    yield Finding(
        title=f"{share:.0%} of each step is spent waiting for the next batch: {milliseconds:.1f} of "
        f"{timing.step_ns / MILLISECOND:.1f} ms{waiting}",
        ranks=ranks,
        confidence=POSSIBLE if queued else LIKELY,
        severity=NOTE if full else WARNING,
        place=site,
        places=(
            Place(site, ranks, "waits for a batch"),
            *((Place(made, ranks, "the loader is created"),) if made else ()),
        ),
        evidence={
            "share": round(share, 3),
            "step_ms": round(timing.step_ns / MILLISECOND, 2),
            "waiting_ms": {rank: round(times.data.value / MILLISECOND, 2) for rank, times in timing.ranks.items()},
            "deviation_ms": round(worst.data.spread / MILLISECOND, 2),
            "workers": worst.workers,
            "steps": worst.data.count,
        },
        why=f"{_loader(worst)}; median over {worst.data.count} steps, deviation {worst.data.spread / MILLISECOND:.1f} ms"
        + full,
        prescriptions=(
            Prescription("load-ahead", change=_WITHOUT_A_CORE)
            if full
            else Prescription(
                "load-ahead", change=_change(worst), effect=f"up to {milliseconds:.1f} ms a step ({share:.0%})"
            ),
        ),
    )


def _is_full(timing: Timing, worst: RankTimes, *, odd: bool) -> str:
    """Why workers would not help: there is no core for them. "" where they would."""
    if not worst.workers and _asleep(timing, worst.rank) >= DATA_SHARE * timing.step_ns:
        return ""  # it waits for a disk or a network, which workers do without a core
    crowded = timing.queued(worst.rank)[1]
    no_core = not odd and timing.has_no_core_left(worst.rank)
    if crowded >= CROWDED or (no_core and worst.workers and crowded >= WANTED):
        return (
            f"; its main thread stood in the queue for a core in {crowded:.0%} of the time: the host is full, and batches are "
            "slow as everything is"
        )
    if no_core and not worst.workers:
        return (
            "; the ranks compute on every core of this host, and making a batch is work: workers would take their cores"
        )
    return ""


def _asleep(timing: Timing, rank: int) -> float:
    """Nanoseconds of each step in which the main thread slept, and not for other ranks."""
    waiting = next((one.waiting for one in step_times(timing.recording) if one.rank == rank), 0.0)
    return max(0.0, timing.off_core_ns(rank) - waiting)


def _restarted(timing: Timing) -> Iterator[Finding]:
    found = {rank: one for rank, times in timing.ranks.items() if (one := restarted_workers(times.log)) is not None}
    if not found:
        return
    worst = max(found.values(), key=lambda one: one.waited_ns)
    seconds = worst.waited_ns / 1e9
    yield Finding(
        title=f"each pass over the loader begins with {seconds:.1f} s of waiting, {worst.share:.0%} of the pass: "
        f"{'the loader is made anew, and its' if worst.loader_anew else 'its'} workers are started anew",
        ranks=tuple(sorted(found)),
        confidence=LIKELY,
        severity=NOTE,
        place=worst.made_at,
        places=(
            Place(worst.made_at, tuple(sorted(found)), f"the loader is created, {worst.workers} workers"),
            Place(worst.loop, tuple(sorted(found)), "waits for the first batches"),
        ),
        evidence={
            "waited_ms": round(worst.waited_ns / MILLISECOND, 1),
            "pass_ms": round(worst.pass_ns / MILLISECOND, 1),
            "passes": worst.passes,
            "workers": worst.workers,
        },
        why=f"in {worst.passes} passes after the first one the workers were new processes: what they had opened, read or kept "
        "before was gone",
        prescriptions=(
            Prescription(
                "load-ahead",
                change="make the DataLoader once, before the loop, so that persistent_workers=True keeps them; what changes from "
                "pass to pass belongs into the sampler"
                if worst.loader_anew
                else "DataLoader(..., persistent_workers=True)",
                effect=f"up to {seconds:.1f} s a pass ({worst.share:.0%})",
            ),
        ),
    )


def _loader(times: RankTimes) -> str:
    if times.workers:
        return f"its {times.workers} workers do not keep up"
    return "the loader has no workers, so the model waits while each batch is made"


def _change(times: RankTimes) -> str:
    if times.workers:
        return f"DataLoader(..., num_workers={2 * times.workers}, persistent_workers=True, prefetch_factor=4)"
    return "DataLoader(..., num_workers=2, persistent_workers=True)"


def sick() -> Recording:
    return timed_job(2).steps(40, data={1: 30}).recording()


def healthy() -> Recording:
    """The same waits, in an evaluation or at the start of an epoch: now and then, not in each step."""
    job = timed_job(2)
    for _ in range(4):
        job.steps(1, data=900).steps(10)
    return job.recording()
