"""Whether ranks that average gradients share a model besides: each holds a part that works on the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from distdoctor.diagnosis.facts.replicas import ReplicaSet
from distdoctor.diagnosis.replicas.gradients import WRAPPER, Gradients
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.layout import Op, TensorFlag

_EXCHANGES = (Op.ALL_TO_ALL, Op.ALL_TO_ALL_SINGLE)
_OFTEN = 0.5  # of the steps on record


@dataclass(frozen=True)
class ForwardExchanges:
    """The fact: the ranks that call all_to_all in the forward pass of most steps."""

    streams: ClassVar[frozenset[str]] = frozenset({"collectives", "progress"})
    ranks: frozenset[int]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        return cls(frozenset(rank for rank, log in recording.ranks.items() if _exchanges_forward(log)))


def spread_how(exchanges: ForwardExchanges | None, gradients: Gradients | None, replicas: ReplicaSet) -> str:
    """`they exchange activations by all_to_all`, `each trains parameters of its own`; "" where nothing tells."""
    if (
        gradients is not None
        and replicas.by == WRAPPER  # what shards parameters leaves other parts on each rank
        and len({_own_parts(gradients, rank) for rank in replicas.ranks}) > 1
    ):
        return "each trains parameters of its own besides, which no wrapper averages"
    if exchanges is not None and exchanges.ranks.issuperset(replicas.ranks):
        return "they exchange activations by all_to_all"
    return ""


def _own_parts(gradients: Gradients, rank: int) -> frozenset[tuple[str, str]]:
    """(name, shape) of the trained parameters that agree with no other rank's."""
    return frozenset(
        (tensor.name, tensor.shape)
        for tensor in gradients.tensors_of([rank])
        if tensor.optimizer and len(tensor.agree) < 2 and not tensor.flags & (TensorFlag.BUFFER | TensorFlag.COPY)
    )


def _exchanges_forward(log: RankTrace) -> bool:
    """Whether in most steps an all_to_all came before the last backward pass."""
    times, calls = log.rows("times"), log.calls[np.isin(log.calls["op"], list(map(int, _EXCHANGES)))]
    if not len(times) or not len(calls):
        return False
    steps = calls["step"].astype(np.int64) + 1
    at = np.minimum(np.searchsorted(times["step"].astype(np.int64), steps), len(times) - 1)
    forward = (times["step"][at] == steps) & (calls["entered_ns"] < times["forward_ended_ns"][at])
    return len(np.unique(steps[forward])) >= _OFTEN * len(times)
