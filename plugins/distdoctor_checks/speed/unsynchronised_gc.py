"""
DD512 unsynchronised-gc: Python's garbage collection stops ranks in different steps, so that others wait, or all in every step.

What it means    CPython collects garbage once enough objects have been allocated, each process by its own count. While one rank
                 traverses millions of objects, all others wait in the next collective; in another step it is the other way
                 round. Or the program calls gc.collect() in each step, which traverses all objects there are.
Why it hurts     A pause that all ranks could take at once is paid once per rank; one in each step is paid all the time.
How we know      The time in the collector, from gc.callbacks, for each step of each rank. Only steps in which a rank collects
                 alone count (the median rank spends less than a quarter of that time in its own collector): 2 % of the time,
                 and a tenth of a second in total. The others' wait is computed, not measured. In every step: each rank spends
                 3 ms and more in the collector in a third of its steps or more, and a tenth of the time.
What to do       Freeze long-lived objects and collect at fixed steps: gc.disable(); gc.freeze(); and every rank calls
                 gc.collect() in the same step, for example every 1,000 steps.
When it is fine  Collections of all ranks in the same step now and then, short ones, and jobs of fewer than 20 steps.
Source           torchtitan's GarbageCollection ("avoid straggling during training"); CPython's gc module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import LIKELY, NOTE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.speed.timing import MILLISECOND, SECOND, WORTH_STEP_NS, Floats, Timing
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import GarbageCollected
from distdoctor.testing.timing import timed_job

SHARE, WORTH_SECONDS = 0.02, 0.1
MUCH = 0.1  # of the time: then it is no note any more
ALONE = 0.25  # of its pause is all that the others spend in theirs; two that strike together do not last equally long
OFTEN = 0.3  # of its steps: each rank collects again and again
FEWEST = 2  # steps in which a rank was stopped alone


@check("DD512", "unsynchronised-gc", severity=NOTE, live=False)
def examine(timing: Timing) -> Iterator[Finding]:
    if len(timing.ranks) < 2:
        return
    spent, wall = _by_step(timing)
    often, total = (spent >= WORTH_STEP_NS).mean(axis=1).min(), float(spent.sum(axis=1).min())
    if often >= OFTEN and total >= max(WORTH_SECONDS * SECOND, MUCH * wall):
        yield _again_and_again(timing, round(1 / often), total, wall)
        return
    usual = np.median(spent, axis=0) if len(spent) > 2 else spent.min(axis=0)
    lost = np.where(usual <= ALONE * spent, spent - usual, 0.0)
    worst = lost.max(axis=0)  # [steps]
    struck = {rank: int((mine >= WORTH_STEP_NS).sum()) for rank, mine in zip(sorted(timing.ranks), lost, strict=True)}
    total = float(worst[worst >= WORTH_STEP_NS].sum())
    if max(struck.values()) < FEWEST or total < max(WORTH_SECONDS * SECOND, SHARE * wall):
        return
    yield _finding(timing, {rank: count for rank, count in struck.items() if count}, total, wall)


def _again_and_again(timing: Timing, every: int, total: float, wall: float) -> Finding:
    ranks, steps = tuple(sorted(timing.ranks)), timing.steps
    often = "every step" if every == 1 else f"one step of {every}"
    site = next((site for rank in ranks if (site := _struck_at(timing, rank))), timing.step_site(ranks[0]))
    return Finding(
        title=f"garbage collection runs in {often}: {total / SECOND:.1f} of {wall / SECOND:.1f} s on each rank",
        ranks=ranks,
        confidence=LIKELY,
        severity=WARNING,
        place=site,
        places=(Place(site, ranks, "longest collection"),),
        evidence={
            "lost_seconds": round(total / SECOND, 3),
            "seconds_per_step": round(total / steps / SECOND, 6),
            "share": round(total / wall, 3),
            "steps": steps,
        },
        why=f"{total / steps / MILLISECOND:.1f} ms a step on average, on every rank",
        prescriptions=(
            Prescription(
                "collect-together",
                change="call gc.collect() once in hundreds of steps, and gc.freeze() once what lives long has been made",
                effect=f"up to {total / SECOND:.1f} of {wall / SECOND:.1f} s",
            ),
        ),
    )


def _by_step(timing: Timing) -> tuple[Floats, float]:
    """[ranks, steps] nanoseconds in the collector, of the steps that all ranks have made, and how long these lasted. The part in
    which a rank stood in the queue for a core is not the collector's."""
    times = [timing.ranks[rank] for rank in sorted(timing.ranks)]
    common = set.intersection(*(set(one.steps.tolist()) for one in times))
    rows = [one.of("collected_ns")[np.isin(one.steps, list(common))] for one in times]
    rows = [mine * (1 - timing.queued(rank)[1]) for mine, rank in zip(rows, sorted(timing.ranks), strict=True)]
    return np.stack(rows), float(times[0].walls[np.isin(times[0].steps, list(common))].sum())


def _finding(timing: Timing, struck: Mapping[int, int], total: float, wall: float) -> Finding:
    ranks = tuple(sorted(struck, key=lambda rank: -struck[rank]))
    steps = timing.steps
    sites = {rank: _struck_at(timing, rank) for rank in ranks}
    places = tuple(Place(site, (rank,), "longest collection") for rank, site in sites.items() if site)
    each = total / steps / MILLISECOND
    return Finding(
        title=f"garbage collection stops ranks in different steps: the others wait {total / SECOND:.1f} of "
        f"{wall / SECOND:.1f} s for it",
        ranks=tuple(sorted(ranks)),
        confidence=LIKELY,
        severity=WARNING if total >= MUCH * wall else NOTE,
        place=next((site for site in sites.values() if site), timing.step_site(ranks[0])),
        places=places,
        evidence={
            "lost_seconds": round(total / SECOND, 3),
            "seconds_per_step": round(each / 1e3, 6),
            "share": round(total / wall, 3),
            "steps_alone_in_the_collector": struck,
            "steps": steps,
        },
        why=f"{each:.1f} ms a step on average; "
        + ", ".join(f"rank {rank} alone in {count} of {steps} steps" for rank, count in sorted(struck.items())),
        prescriptions=(
            Prescription("collect-together", effect=f"up to {total / SECOND:.1f} of {wall / SECOND:.1f} s"),
        ),
    )


def _struck_at(timing: Timing, rank: int) -> SourceLine:
    noted = list(timing.ranks[rank].log.noted(GarbageCollected))
    return noted[-1].site if noted and noted[-1].count else SourceLine()


def _job(*strikes: Mapping[int, float]) -> Recording:
    """In two steps of six, one after the other, ranks are stopped for so many milliseconds."""
    job = timed_job(2)
    for log in job.logs:
        log.note(GarbageCollected(4, 160_000_000, 40_000_000), site="train.py:31 train")
    for _ in range(6):
        job.steps(4)
        for struck in strikes:
            job.steps(1, forward={rank: 20 + more for rank, more in struck.items()}, collected=struck)
    return job.recording()


def sick() -> Recording:
    return _job({0: 40}, {1: 40})


def healthy() -> Recording:
    """Both collect in the same steps."""
    return _job({0: 40, 1: 40}, {})
