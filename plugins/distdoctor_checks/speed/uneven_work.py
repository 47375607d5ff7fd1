"""
DD513 uneven-work: ranks get different amounts of work in each step, and all of them wait for the one with the most.

What it means    Each rank has the same number of samples, but not of tokens, pixels or points: longer texts, more padding,
                 larger images. A step takes as long as the largest batch of any rank.
Why it hurts     The other ranks idle for the difference in every step. More ranks make it worse: the maximum grows.
How we know      The number of elements in the largest tensor of each batch that went into DistributedDataParallel, or came from
                 a DataLoader, per step and rank, together with the order in which ranks enter the collectives: in four uneven
                 steps of five the rank with the most elements arrives last, and the others' wait for it is at least 10 % of a
                 step.
What to do       Balance work, not samples: sort a window of samples by length and deal them out round-robin, batch by tokens,
                 or pack sequences to one length.
When it is fine  Work that differs by less than a quarter, or costs nothing; jobs of fewer than 20 steps. Where another rank has
                 the most in each step, by chance, it is a note as long as it costs less than half of a step.
Source           LengthGroupedSampler of transformers; sequence packing and token-balanced batching in TRL and torchtitan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.batch_shares import blocks_by_rank
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.timing import ALWAYS, FEWEST, LATE_SHARE, MILLISECOND, Arrivals, Floats, Timing
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.testing.timing import timed_job

HALF = 0.5  # of a step, from which on what chance deals out is more than a note
UNEVEN = 1.25  # times the work of the rank in the middle


class Load(NamedTuple):
    """Who had how much in the uneven steps, and what it cost. `elements`, `waits`: [ranks, steps]."""

    ranks: tuple[int, ...]
    elements: Floats
    waits: Floats  # nanoseconds that the others lost because of this rank
    steps: int  # regular steps in all

    @property
    def heaviest(self) -> NDArray[np.intp]:
        """[steps] who had most, as a position in `ranks`."""
        found: NDArray[np.intp] = self.elements.argmax(axis=0)
        return found

    @property
    def share_last(self) -> float:
        """Of these steps, those in which the rank that had most was the one that the others waited for."""
        return float(np.mean(self.waits.argmax(axis=0) == self.heaviest))


@check("DD513", "uneven-work", severity=WARNING, live=False)
def examine(timing: Timing, sources: Sources) -> Iterator[Finding]:
    loads = [load for arrivals in timing.arrivals if (load := _load(timing, arrivals)) is not None]
    for load in sorted(loads, key=lambda load: -float(load.waits.sum()))[:1]:
        lost = RobustMedian.of(load.waits.max(axis=0))
        if load.share_last >= ALWAYS and timing.is_much(lost, LATE_SHARE):
            yield _finding(timing, load, lost, blocks_by_rank(sources.texts))


def _load(timing: Timing, arrivals: Arrivals) -> Load | None:
    """The uneven steps of one group; None where there are few of them, or nobody knows how much there was to do."""
    lateness = arrivals.lateness()
    regular = set.intersection(*(set(timing.ranks[rank].steps.tolist()) for rank in arrivals.ranks))
    steps = np.array(sorted(regular & lateness.keys()), np.int64)
    if len(steps) < FEWEST:
        return None
    by_rank = [timing.ranks[rank] for rank in arrivals.ranks]
    elements = np.stack([times.of("elements")[np.isin(times.steps, steps)] for times in by_rank])
    middle = np.median(elements, axis=0) if len(by_rank) > 2 else elements.min(axis=0)
    uneven = (elements > 0).all(axis=0) & (elements.max(axis=0) >= UNEVEN * middle)
    if uneven.sum() < max(FEWEST, len(steps) / 2):
        return None
    waits = np.stack([lateness[int(step)] for step in steps[uneven]], axis=1)
    return Load(arrivals.ranks, elements[:, uneven], waits, len(steps))


def _finding(timing: Timing, load: Load, lost: RobustMedian, blocks: list[SourceLine]) -> Finding:
    counts = np.bincount(load.heaviest, minlength=len(load.ranks))
    fullest = load.ranks[int(counts.argmax())]
    always = counts.max() >= ALWAYS * load.heaviest.size
    mean = {rank: round(float(mine.mean())) for rank, mine in zip(load.ranks, load.elements, strict=True)}
    per_step, step = lost.value / MILLISECOND, timing.step_ns / MILLISECOND
    ranks = (fullest,) if always else load.ranks
    ratio = float(np.median(load.elements.max(axis=0) / np.sort(load.elements, axis=0)[:-1].mean(axis=0)))
    who = f"rank {fullest} gets" if always else "a different rank in each step gets"
    site = timing.loop_site(fullest)
    block = blocks[0] if always and len(blocks) == 1 else SourceLine()
    on_cpu = all(times.on_cpu for times in timing.ranks.values())
    return Finding(
        title=f"{who} {ratio:.1f} times as much work as the others: they wait {per_step:.1f} of {step:.1f} ms in each step",
        ranks=ranks,
        confidence=LIKELY if on_cpu else POSSIBLE,
        severity=WARNING if always or lost.value >= HALF * timing.step_ns else NOTE,
        place=site or block or timing.step_site(fullest),
        places=(
            *((Place(site, load.ranks, "where the batches come from"),) if site else ()),
            *((Place(block, load.ranks, "gives each rank a block of neighbours"),) if block else ()),
        ),
        evidence={
            "elements_per_step": mean,
            "ratio": round(ratio, 2),
            "lost_seconds_per_step": round(per_step / 1e3, 6),
            "share_of_step": round(per_step / step, 3),
            "uneven_steps": int(load.heaviest.size),
            "steps": load.steps,
        },
        why=f"{_means(mean)} elements a step; in {load.share_last:.0%} of {load.heaviest.size} uneven steps the rank with "
        f"the most arrived last, and {named(set(load.ranks) - {fullest}) if always else 'the others'} waited",
        prescriptions=(Prescription("deal-out-work", effect=f"up to {per_step:.1f} ms a step, {per_step / step:.0%}"),),
    )


def _means(mean: Mapping[int, int]) -> str:
    words = [f"rank {rank}: {count}" for rank, count in mean.items()]
    return ", ".join(words if len(words) <= 4 else [*words[:2], "...", words[-1]])


def sick() -> Recording:
    """Rank 1 has the long texts."""
    return timed_job(2).steps(40, forward={1: 60}, elements={0: 4096, 1: 12288}).recording()


def healthy() -> Recording:
    """Rank 1 has more of them, which takes as long."""
    return timed_job(2).steps(40, elements={0: 4096, 1: 12288}).recording()
