"""
DD506 pipeline-bubble: pipeline stages wait for each other more than they compute.

What it means    A pipeline of p stages idles (p - 1) / (m + p - 1) of the time when a batch flows in m micro-batches: with too
                 few of them, half of the hardware waits. Every stage also waits for the slowest one: uneven stages add idle
                 time.
Why it hurts     The idle share is paid for on all ranks, in every step.
How we know      Ranks send to their neighbors, m times each way: this gives the schedule's own idle share. The time that each
                 rank waits for handles and in blocking calls is measured; the rest is its stage's compute. Reported: schedules
                 that idle at least 45 % by themselves, and stages that compute 1.5 times as long as the others while those wait
                 a third of the step.
What to do       Use more micro-batches or an interleaved schedule; move layers from the busiest stage to the others.
When it is fine  Model parallelism without micro-batches idles by design and is not reported; neither are rings.
Source           Huang et al., GPipe (2019): the bubble is negligible when m >= 4 p. torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.timing import MILLISECOND, RankTimes, Timing
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import Op
from distdoctor.testing.timing import pipelined_job

SCHEDULE = 0.45  # idle by the schedule alone
UNEVEN, WAITS = 1.5, 0.35  # the busiest stage over the middle of the others; share of a step that those wait


@check("DD506", "pipeline-bubble", severity=NOTE, live=False)
def examine(timing: Timing) -> Iterator[Finding]:
    stages, micro_batches = _pipeline(timing)
    if len(stages) < 2 or micro_batches < 2:
        return
    idle = {rank: RobustMedian.of(timing.ranks[rank].idle) for rank in stages}
    busy = {rank: RobustMedian.of(timing.ranks[rank].walls - timing.ranks[rank].idle) for rank in stages}
    schedule = (len(stages) - 1) / (micro_batches + len(stages) - 1)
    least = min(idle.values(), key=lambda one: one.value)
    if schedule >= SCHEDULE and timing.is_worth(least, 0.7 * schedule):
        yield _too_few(timing, stages, micro_batches, schedule, idle)
        return
    busiest = max(stages, key=lambda rank: busy[rank].value)
    others = [rank for rank in stages if rank != busiest]
    usual = float(np.median([busy[rank].value for rank in others]))
    waiting = min((idle[rank] for rank in others), key=lambda one: one.value)
    if busy[busiest].value >= UNEVEN * usual and timing.is_worth(waiting, WAITS):
        yield _uneven(timing, busiest, others, usual, busy, idle)


def _too_few(
    timing: Timing, stages: tuple[int, ...], micro_batches: int, schedule: float, idle: Mapping[int, RobustMedian]
) -> Finding:
    p, enough = len(stages), 4 * len(stages)
    then = (p - 1) / (enough + p - 1)
    site = _site(timing.ranks[stages[0]])
    return Finding(
        title=f"{schedule:.0%} of each step is pipeline bubble: {p} stages, {micro_batches} micro-batches",
        ranks=stages,
        confidence=CERTAIN,
        place=site,
        places=(Place(site, stages, "sends to the next stage"),),
        evidence={"stages": p, "micro_batches": micro_batches, "bubble": round(schedule, 3), **_numbers(timing, idle)},
        why=f"(p - 1) / (m + p - 1) = {p - 1} / {micro_batches + p - 1}; measured waiting: {_shares(timing, idle)}",
        prescriptions=(
            Prescription("fill-the-pipeline", effect=f"{enough} micro-batches: {then:.0%} instead of {schedule:.0%}"),
        ),
    )


def _uneven(
    timing: Timing,
    busiest: int,
    others: list[int],
    usual: float,
    busy: Mapping[int, RobustMedian],
    idle: Mapping[int, RobustMedian],
) -> Finding:
    site = _site(timing.ranks[busiest])
    most = busy[busiest].value
    even = (most + sum(busy[rank].value for rank in others)) / (1 + len(others))
    return Finding(
        title=f"the stage of rank {busiest} computes {most / MILLISECOND:.1f} ms a step, the others {usual / MILLISECOND:.1f} ms "
        f"and wait {_shares(timing, {rank: idle[rank] for rank in others})} of the step",
        ranks=(busiest,),
        confidence=LIKELY,
        place=site,
        places=(Place(site, (busiest,), "the busiest stage"),),
        evidence={
            "busy_ms": {rank: round(one.value / MILLISECOND, 2) for rank, one in busy.items()},
            **_numbers(timing, idle),
        },
        why=f"compute is the step of {timing.step_ns / MILLISECOND:.1f} ms minus waiting for handles and in blocking calls",
        prescriptions=(
            Prescription(
                "fill-the-pipeline", effect=f"even stages: {(most - even) / MILLISECOND:.1f} ms less a step at most"
            ),
        ),
    )


def _pipeline(timing: Timing) -> tuple[tuple[int, ...], int]:
    """The ranks of an open chain of neighbours, and how many micro-batches flow through it in a step; () when there is none."""
    sends = {rank: _sends(times) for rank, times in timing.ranks.items()}
    chain = tuple(sorted(rank for rank, to in sends.items() if to))
    for place, rank in enumerate(chain):
        if set(sends[rank]) != set(chain[max(0, place - 1) : place + 2]) - {rank}:
            return (), 0
    return chain, min((min(to.values()) for rank, to in sends.items() if to), default=0)


def _sends(times: RankTimes) -> dict[int, int]:
    """peer -> sends in a step."""
    calls = times.log.calls
    mine = calls[(calls["op"] == Op.SEND) & np.isin(calls["step"].astype(np.int64) + 1, times.steps)]
    found = {}
    for peer in np.unique(mine["root"]):
        counts = np.unique(mine["step"][mine["root"] == peer], return_counts=True)[1]
        if len(counts) >= 0.5 * len(times.steps):
            found[int(peer)] = int(np.median(counts))
    return found


def _numbers(timing: Timing, idle: Mapping[int, RobustMedian]) -> dict[str, object]:
    return {
        "idle_ms": {rank: round(one.value / MILLISECOND, 2) for rank, one in idle.items()},
        "step_ms": round(timing.step_ns / MILLISECOND, 2),
        "steps": timing.steps,
    }


def _shares(timing: Timing, idle: Mapping[int, RobustMedian]) -> str:
    shares = [one.value / timing.step_ns for one in idle.values()]
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low}-{high}"


def _site(times: RankTimes) -> SourceLine:
    calls = times.log.calls
    sites = calls["site"][calls["op"] == Op.SEND]
    return times.log.site(int(sites[-1])) if len(sites) else SourceLine()


def sick() -> Recording:
    return pipelined_job([5, 20, 5, 5], micro_batches=8)


def healthy() -> Recording:
    """Even stages, four times as many micro-batches."""
    return pipelined_job([20, 20, 20, 20], micro_batches=16)
