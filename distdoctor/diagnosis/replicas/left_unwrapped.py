"""Parts of what is trained that no wrapper holds, while the same ranks train another part inside one.

A part of each rank's own looks the same to a wrapper: a head for its own data, experts, tables that are dealt out. Those begin
differently, learn from data of their own, or have rows traded for them. So what is told began equal, parts in the first steps
and never meets again, on ranks that share one data set among them, shard the rest, or save for one another, and exchange nothing
but gradients and a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.replicas.divergence import LONGEST_WINDOW
from distdoctor.diagnosis.replicas.gradients import OBSERVED, WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.never_wrapped import each_saves_its_own, shares_one_dataset
from distdoctor.diagnosis.replicas.observed import ParameterCourse, courses
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, TensorInfo, Update
from distdoctor.diagnosis.replicas.reunion import weights_are_exchanged
from distdoctor.diagnosis.replicas.skipped_gradients import meets, parts, some_save
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import CallFlag, Op, TensorFlag

FULLY_SHARD = "fully_shard"
DEALT, SAVED = "share one dataset with a DistributedSampler", "save one model for all"
A_FEW = 128  # bytes: what scores, counts and norms take
NOW_AND_THEN = 1 / 4  # of the steps
_BARRIERS = (Op.BARRIER, Op.MONITORED_BARRIER)
_OF_SHARDS = (Op.ALL_GATHER, Op.ALL_GATHER_INTO_TENSOR, Op.REDUCE_SCATTER, Op.REDUCE_SCATTER_TENSOR)


@dataclass(frozen=True)
class LeftUnwrapped:
    """What one optimizer holds of them. `by` averages `inside` others on these ranks; `together`: why they belong together.

    `beside`: of those that the wrapper was told to ignore, how many others the program reduces by itself; 0 where no wrapper
    holds them at all.
    """

    ranks: tuple[int, ...]
    by: str
    together: str
    tensors: tuple[TensorInfo, ...]
    inside: int
    update: Update
    beside: int = 0


@dataclass(frozen=True)
class PartsLeftUnwrapped:
    """All of them."""

    streams: ClassVar[frozenset[str]] = frozenset({"gradients", "collectives", "samples"})
    found: tuple[LeftUnwrapped, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        if recording.missing:
            return cls(())
        gradients, known = derived(Gradients, recording), derived(Replicas, recording).sets
        found: list[LeftUnwrapped] = []
        for replicas in known:
            together = "shard the others" if replicas.by == FULLY_SHARD else ""
            if replicas.by == WRAPPER and not each_saves_its_own(recording):
                together = DEALT if shares_one_dataset(recording) else SAVED if some_save(recording) else ""
            found += _found(gradients, replicas, together) if together else ()
        return cls(tuple(found))


def _found(gradients: Gradients, replicas: ReplicaSet, together: str) -> Iterator[LeftUnwrapped]:
    known = [gradients.ranks[rank] for rank in replicas.ranks if rank in gradients.ranks]
    if not known or len(known) < len(replicas.ranks):
        return
    if gradients.recording.job.running and max(len(own.log.steps) for own in known) <= LONGEST_WINDOW:
        return  # they may meet yet
    outside = [one for one in known[0].tensors.values() if _is_in_none(one)]
    if outside and not any(_exchanges(own, replicas.by) for own in known):
        yield from _parted(gradients, replicas, together, outside)
    ignored = [one for one in known[0].tensors.values() if one.optimizer > 0 and one.flags & TensorFlag.IGNORED]
    reduced = [shapes_reduced(own) for own in known] if ignored else []
    forgotten = [one for one in ignored if not any(one.shape in shapes for shapes in reduced)]
    beside = len(ignored) - len(forgotten)
    sent = frozenset(one.shape for one in ignored)
    if forgotten and beside and not any(_exchanges(own, replicas.by, sent) for own in known):
        yield from _parted(gradients, replicas, together, forgotten, beside)


def _parted(
    gradients: Gradients, replicas: ReplicaSet, together: str, tensors: list[TensorInfo], beside: int = 0
) -> Iterator[LeftUnwrapped]:
    """Those of these parameters that began equal, part in the first steps and never meet, by optimizer."""
    ranks, first = replicas.ranks, gradients.ranks[replicas.ranks[0]]
    inside = sum(1 for tensor in first.tensors.values() if tensor.agree and not tensor.flags & TensorFlag.BUFFER)
    for optimizer in sorted({one.optimizer for one in tensors}):
        found = courses(gradients.ranks, optimizer, ranks)
        mine = sorted((one for one in tensors if one.optimizer == optimizer), key=lambda one: one.index)
        whole = tuple(one for one in mine if one.name in found and parts(found[one.name], ranks))
        if _are_own_models(mine, whole, found):
            continue
        peers = ReplicaGroup(ranks, optimizer, OBSERVED, (), frozenset(one.name for one in whole))
        if inside and whole and not meets(gradients, peers) and not weights_are_exchanged(gradients, peers, 1):
            update = next(one for one in first.updates if one.optimizer == optimizer and one.step)
            yield LeftUnwrapped(ranks, replicas.by, together, whole, inside, update, beside)


def _are_own_models(
    mine: list[TensorInfo], whole: tuple[TensorInfo, ...], found: Mapping[str, Mapping[int, ParameterCourse]]
) -> bool:
    """Whether most of these parameters began differently on each rank: norms begin with ones and zeros everywhere."""
    apart = [one for one in mine if len({course.start for course in found.get(one.name, {}).values()}) > 1]
    return sum(one.numel for one in apart) > sum(one.numel for one in whole)


def shapes_reduced(own: RankGradients) -> frozenset[str]:
    """The shapes that the program itself all_reduces in most of its steps."""
    calls = own.log.calls
    mine = calls[(calls["step"] > 0) & (calls["flags"] & CallFlag.NATIVE == 0) & (calls["op"] == Op.ALL_REDUCE)]
    shapes, counts = np.unique(mine["shape"], return_counts=True)
    often = len(own.log.steps) / 2
    return frozenset(own.log.text(int(shape)) for shape, count in zip(shapes, counts, strict=True) if count >= often)


def _is_in_none(tensor: TensorInfo) -> bool:
    """Whether it is a parameter that an optimizer holds and no wrapper does."""
    left_alone = TensorFlag.IGNORED | TensorFlag.SHARDED | TensorFlag.BUFFER
    return tensor.optimizer > 0 and not tensor.agree and not tensor.flags & left_alone


def _exchanges(own: RankGradients, by: str, besides: frozenset[str] = frozenset()) -> bool:
    """Whether the program itself sends more than a few numbers in its steps: activations, features, weights. What it sends now
    and then, as the pictures of an evaluation, trains nothing; nor do sums of what has one of the shapes `besides`."""
    calls, others = own.log.calls, _BARRIERS if by == WRAPPER else (*_BARRIERS, *_OF_SHARDS)
    mine = (
        (calls["step"] > 0)
        & (calls["flags"] & CallFlag.NATIVE == 0)
        & ~np.isin(calls["op"], [int(op) for op in others])
    )
    shapes = [int(one) for one in np.unique(calls["shape"]) if own.log.text(int(one)) in besides]
    mine &= ~((calls["op"] == Op.ALL_REDUCE) & np.isin(calls["shape"], shapes))
    steps = np.unique(calls["step"][mine & (calls["nbytes"] > A_FEW)])
    return len(steps) > NOW_AND_THEN * len(own.log.steps)
