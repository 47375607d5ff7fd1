"""Optimizers that hold a part of a model on each rank, of which some step less often: each rank decides for itself.

All ranks make the same calls from the same lines, so they went through training side by side, and gradients are summed in every
turn. Where the optimizers hold replicas, the replicas part and are told for that. Where each holds a shard, nothing parts: the
shards that were left out of a step are older than the others, and a loss scale that follows from the skipped steps is another
one on each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.reduced_by_hand import reduced_in_each_turn
from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.recording.recording import RankTrace, Recording, SourceLine

ENOUGH = 20  # steps of the rank that made the most
LEFT_OUT = 5  # steps at least that another made less: the first ones of a loss scale may overflow anywhere
PART = 0.05  # of the steps at least
HALF_BYTES = 2  # of a number in half precision


@dataclass(frozen=True)
class UnevenSteps:
    """Only of jobs with one optimizer a rank: of several, the recording counts all steps together."""

    streams: ClassVar[frozenset[str]] = frozenset({"gradients", "collectives"})
    found: tuple[StepsOfLine, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        if len(recording.ranks) < 2 or recording.missing or recording.job.running or recording.job.exit_code:
            raise NotApplicable("steps are only counted against each other in a job of which all ranks came through")
        return cls(tuple(_found(derived(Gradients, recording), recording)))


@dataclass(frozen=True)
class StepsOfLine:
    """The line at which ranks step unequally often; `steps`: how often each of them did."""

    site: SourceLine
    steps: Mapping[int, int]
    reduced: SourceLine
    decision: Decision
    at_ns: int

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks that left steps out."""
        most = max(self.steps.values())
        return tuple(rank for rank, count in self.steps.items() if most - count >= LEFT_OUT)


def _found(gradients: Gradients, recording: Recording) -> Iterator[StepsOfLine]:
    held = {(u.site, u.optimizer) for own in gradients.ranks.values() for u in own.updates if u.step}
    if gradients.peers or len(held) != 1:
        return
    ((site, _),) = held
    steps = {rank: int(log.steps["step"][-1]) if len(log.steps) else 0 for rank, log in recording.ranks.items()}
    most, least = max(steps.values()), min(steps.values())
    if most < ENOUGH or most - least < max(LEFT_OUT, PART * most):
        return
    logs = list(recording.ranks.values())
    if not all(len(log.calls) for log in logs) or len({_calls_of(log) for log in logs}) > 1:
        return
    held_bytes = HALF_BYTES * max(sum(t.numel for t in own.tensors.values()) for own in gradients.ranks.values())
    reduced = reduced_in_each_turn(recording, logs[0].rank, most, held_bytes)
    behind = [rank for rank, count in steps.items() if count < most]
    ahead = [rank for rank in steps if rank not in behind]
    decision = deciding_condition(recording.sources, site, site, behind, ahead)
    if reduced and decision is not None and decision.decides_alone and not decision.comes_from_the_rank:
        last = max(own.updates[-1].at_ns for own in gradients.ranks.values() if own.updates)
        yield StepsOfLine(site, steps, reduced, decision, last)


def _calls_of(log: RankTrace) -> frozenset[tuple[SourceLine, int, int]]:
    """How often each line made which call."""
    pairs, counts = np.unique(log.calls[["site", "op"]], return_counts=True)
    return frozenset(
        (log.site(int(pair["site"])), int(pair["op"]), int(count)) for pair, count in zip(pairs, counts, strict=True)
    )
