"""Ranks that train one model together and never average: no wrapper, no placement, no collective of the size of the gradients.

Independent trials look alike and are no illness: folds of a cross-validation, members of an ensemble, settings of a sweep. So
there has to be a sign that the ranks belong together: they share one data set among them, or reduce something of each step, they
start from the same weights and with the same settings, and not each of them saves a model of its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import Averaging, InitBegun, Saving, Wrapped
from distdoctor.recording.trace.layout import POINT_TO_POINT, Op, PassFlag, TensorFlag

_SAYING_NOTHING = [int(op) for op in (*POINT_TO_POINT, Op.BARRIER, Op.MONITORED_BARRIER)]
_MESSAGES = [int(op) for op in POINT_TO_POINT]
FEWEST_STEPS = 5  # that a rank makes before it is said to train
_OTHER_WAYS = re.compile(r"\b(?:horovod|mpi4py|byteps|bagua|hivemind|zmq|ray|jax|rpc)\b")
_RANK = re.compile(r"RANK\b|(?:^|[^a-z])rank(?:[^a-z]|$)")
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Unwrapped:
    """Ranks that step alone. `together` says why they belong together, `largest` is the largest collective in bytes."""

    ranks: tuple[int, ...]
    step: int
    parameters: int
    nbytes: int
    largest: int
    together: str
    site: SourceLine
    at_ns: int


@dataclass(frozen=True)
class NeverMet:
    """Ranks of one job that train the same model and exchange nothing. `joined`: they made a process group all the same.
    `asks_for_rank`: the source knows that there are several."""

    ranks: tuple[int, ...]
    steps: int
    site: SourceLine
    joined: bool
    asks_for_rank: bool
    at_ns: int


@dataclass(frozen=True)
class UnwrappedReplicas:
    """The set of such ranks, when the recording proves it; and ranks that called no collective at all."""

    streams: ClassVar[frozenset[str]] = frozenset({"gradients", "collectives"})
    found: tuple[Unwrapped, ...]
    gradients: Gradients
    never_met: NeverMet | None = None

    @classmethod
    def of(cls, recording: Recording) -> Self:
        gradients = derived(Gradients, recording)
        return cls(tuple(_unwrapped(gradients, recording)), gradients, _never_met(gradients, recording))


def _unwrapped(gradients: Gradients, recording: Recording) -> Iterator[Unwrapped]:
    if gradients.peers or len(recording.ranks) < 2 or recording.missing:
        return
    if any(log.has_noted(Averaging, Wrapped) for log in recording.ranks.values()):
        return
    ranks = tuple(recording.ranks)
    first = {rank: _first_looks(gradients, rank) for rank in ranks}
    if not all(first.values()):
        return
    starts, steps = zip(*first.values(), strict=True)
    if _differ(starts, "params") or not _train_alike(steps) or each_saves_its_own(recording):
        return
    held = [
        t for t in gradients.ranks[ranks[0]].tensors.values() if t.optimizer == 1 and not t.flags & TensorFlag.BUFFER
    ]
    nbytes = sum(t.numel * _ITEM_BYTES.get(t.dtype, 4) for t in held)
    passed_on = _passed_on_alike(recording, {t.shape for t in held})
    largest = max(_carried(log, passed_on) for log in recording.ranks.values())
    together = _together(recording)
    if largest * 2 > nbytes or not together:
        return
    site = next((update.site for update in steps if update.site), SourceLine())
    yield Unwrapped(ranks, steps[0].step, len(held), nbytes, largest, together, site, min(u.at_ns for u in steps))


def _never_met(gradients: Gradients, recording: Recording) -> NeverMet | None:
    """Whether the job is over, and each of its ranks has trained a model of the same form for itself, without a collective.

    Trials that are meant differ in their settings, begin with weights of their own, or save files of their own, or talk by other
    means. Who writes the same files means one training.
    """
    logs = recording.ranks
    if len(logs) < 2 or recording.missing or recording.job.running or gradients.peers or each_saves_its_own(recording):
        return None
    if any(len(log.calls) or len(log.steps) < FEWEST_STEPS for log in logs.values()):
        return None
    if any(_OTHER_WAYS.search(text) for text in recording.sources.values()):
        return None
    if any(rank not in gradients.ranks for rank in logs):
        return None
    known = [gradients.ranks[rank].tensors.values() for rank in logs]
    first = [_first_looks(gradients, rank) for rank in logs]
    if len({tuple(sorted((t.name, t.shape) for t in held)) for held in known}) > 1 or not all(first):
        return None
    starts, steps = zip(*filter(None, first), strict=True)
    if not _train_alike(steps) or (_differ(starts, "params") and not _save_the_same_files(recording)):
        return None
    site = next((update.site for update in steps if update.site), SourceLine())
    asks = not recording.sources or any(_RANK.search(text) for text in recording.sources.values())
    joined = any(log.has_noted(InitBegun) for log in logs.values())
    fewest = min(len(log.steps) for log in logs.values())
    return NeverMet(tuple(logs), fewest, site, joined, asks, min(u.at_ns for u in steps))


def _differ(updates: Iterable[Update], what: str) -> bool:
    return len({update.number(what) for update in updates}) > 1


def _train_alike(steps: Sequence[Update]) -> bool:
    """Whether ranks step with the same settings, and gradients of their own."""
    return _differ(steps, "grads") and not _differ(steps, "hyper")


def _first_looks(gradients: Gradients, rank: int) -> tuple[Update, Update] | None:
    """The first optimizer's parameters before its first step, and its first step; None for tensors that are parts of others."""
    own = gradients.ranks[rank]
    if any(tensor.agree for tensor in own.tensors.values()):
        return None
    looks = [update for update in own.updates if update.optimizer == 1 and update.digested]
    if len(looks) < 2 or looks[0].step != 0:
        return None
    return looks[0], looks[1]


def _passed_on_alike(recording: Recording, weights: Container[str]) -> frozenset[str]:
    """Shapes that the ranks hand on and that no weight has, as keys and values in a ring, where every rank sends and receives in
    the same order. In a pipeline the next stage receives what this one sends: nothing there is handed on.
    """
    orders, shapes = set(), set[str]()
    for log in recording.ranks.values():
        calls = log.calls[(log.calls["step"] > 0) & np.isin(log.calls["op"], _MESSAGES)]
        calls = calls[calls["step"] == calls["step"][0]] if len(calls) else calls
        sent = tuple((int(op), log.text(int(shape))) for op, shape in zip(calls["op"], calls["shape"], strict=True))
        orders.add(sent)
        shapes |= {shape for _, shape in sent if shape.count(",") and shape not in weights}
    return frozenset(shapes) if len(orders) == 1 else frozenset()


def _carried(log: RankTrace, passed_on: Container[str]) -> int:
    """Bytes of the most that the ranks exchanged in one step while training, but for messages of these shapes."""
    calls = log.calls[log.calls["step"] > 0]
    other = [int(text) for text in np.unique(calls["shape"]) if log.text(int(text)) in passed_on]
    calls = calls[~(np.isin(calls["op"], _MESSAGES) & np.isin(calls["shape"], other))]
    steps, at = np.unique(calls["step"], return_inverse=True)
    return int(np.bincount(at, weights=calls["nbytes"].astype(np.float64)).max()) if len(steps) else 0


def _together(recording: Recording) -> str:
    """Why these ranks belong together, "" when nothing says so."""
    if shares_one_dataset(recording):
        return "shard one dataset with a DistributedSampler"
    if all(_reduces_in_most_steps(log) for log in recording.ranks.values()):
        return "reduce something in their steps"
    return ""


def shares_one_dataset(recording: Recording) -> bool:
    """Whether a DistributedSampler deals the samples of what is trained on to all ranks."""
    passes = [log.passes[(log.passes["flags"] & PassFlag.STEPPED) > 0] for log in recording.ranks.values()]
    return all(len(one) and (one["num_replicas"] == len(recording.ranks)).any() for one in passes)


def _reduces_in_most_steps(log: RankTrace) -> bool:
    """Once an epoch is not enough: so trials compare their scores."""
    calls = log.calls[(log.calls["step"] > 0) & ~np.isin(log.calls["op"], _SAYING_NOTHING)]
    steps = np.unique(calls["step"])
    return len(steps) >= 2 and 2 * len(steps) > int(steps[-1] - steps[0]) + 1


def _save_the_same_files(recording: Recording) -> bool:
    """Whether some path is saved to by all ranks."""
    paths = [{saving.path for saving in log.noted(Saving)} for log in recording.ranks.values()]
    return bool(set.intersection(*paths))


def each_saves_its_own(recording: Recording) -> bool:
    """Whether every rank saves, on the same line, to a path that no other rank uses."""
    by_line: dict[SourceLine, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for rank, log in recording.ranks.items():
        for saving in log.noted(Saving):
            by_line[saving.site][rank].add(saving.path)
    return any(
        by_rank.keys() == recording.ranks.keys() and not set.intersection(*by_rank.values())
        for by_rank in by_line.values()
    )
