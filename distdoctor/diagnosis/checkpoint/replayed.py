"""Three recordings of one job, uninterrupted, interrupted and resumed, in which every step was looked at: where they part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.checkpoint.restored import Restored, in_words, where_loaded
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, Update
from distdoctor.recording.recording import Recording
from distdoctor.recording.replay import Replay
from distdoctor.recording.trace.events import Loading, Saving
from distdoctor.recording.trace.layout import TensorFlag

SHOWN = 400  # steps of the two curves that are kept
SLACK = 4.0  # times the distance of two uninterrupted runs
_BITS = (("weights", "before"), ("the optimizer's state", "state_before"))
_NUMBERS = (("the learning rate", "lr"), ("the loss scale", "scale"), ("the loss", "loss"))


class Parting(NamedTuple):
    """The first thing that differs in one step of one rank."""

    piece: str
    tensor: str = ""
    words: str = ""


@dataclass(frozen=True)
class RunCourse:
    """What one run did, rank by rank; `at` steps of the job were made before it began."""

    ranks: Mapping[int, RankGradients]
    at: int = 0

    @classmethod
    def of(cls, recording: Recording, at: int = 0) -> RunCourse:
        return cls({rank: RankGradients(log) for rank, log in recording.ranks.items()}, at)

    @property
    def last(self) -> int:
        return self.at + max((one.step for log in self.ranks.values() for one in log.updates), default=0)

    def updates(self, rank: int, step: int) -> dict[int, Update]:
        """optimizer -> its update in a step of the job."""
        log = self.ranks.get(rank)
        found = log.updates if log is not None else []
        return {one.optimizer: one for one in found if one.step == step - self.at}

    def loss(self, step: int) -> float:
        """The mean over the ranks, NaN where it is not known."""
        every = [one.value("loss") for rank in self.ranks for one in self.updates(rank, step).values()]
        known = [one for one in every if math.isfinite(one)]
        return sum(known) / len(known) if known else math.nan


def compare(whole: Recording, before: Recording, after: Recording, *, ended: str) -> Replay:
    """The account. `before` and `after` know the states that were saved and that `after` began with."""
    known: Replay | None = None
    try:
        restored = Restored.of(after)
    except NotSeen:
        restored = Restored({})
    shared = _found_by(before, whole)
    if shared:
        return Replay(ended=ended, trouble=shared)
    at = _resumed_from(restored, before)
    if not at:
        return Replay(ended=ended, trouble="the interrupted run saved nothing, or nothing that could be seen")
    if _begins_anew(whole, after, at):
        return Replay(at=at, ended=ended, anew=True)
    site = where_loaded(restored, after)
    base, first, resumed = RunCourse.of(whole), RunCourse.of(before), RunCourse.of(after, at)
    steps = range(at + 1, min(base.last, resumed.last) + 1)
    if not steps:
        return Replay(
            at=at, ended=ended, trouble=f"the resumed run made no step that the uninterrupted one made ({base.last})"
        )
    unstable = next((step for step in range(1, at + 1) if any(_partings(base, first, step))), 0)
    known = Replay(
        at=at,
        ended=ended,
        compared=len(steps),
        missing=tuple(dict.fromkeys(words for one in restored.ranks.values() for words in in_words(one))),
        losses=tuple(_losses(base, resumed, steps)),
        unstable_at=unstable,
        bound=SLACK * max((abs(a - b) for _, a, b in _losses(base, first, range(1, at + 1))), default=0.0)
        if unstable
        else 0.0,
        path=site.path,
        line=site.line,
        function=site.function,
    )
    for step in steps:
        found = dict(_partings(base, resumed, step))
        if found:
            parting = found[min(found)]
            ranks = tuple(sorted(rank for rank, one in found.items() if one.piece == parting.piece))
            return replace(
                known, step=step, ranks=ranks, piece=parting.piece, tensor=parting.tensor, words=parting.words
            )
    return known


def _found_by(before: Recording, whole: Recording) -> str:
    """The words for an interrupted job that began with what the uninterrupted one had saved after a step (before it, a cache may
    have been); "" where it began anew."""
    saved = {event.path for log in whole.ranks.values() for event in log.noted(Saving) if event.step}
    read = {event.path for log in before.ranks.values() for event in log.noted(Loading) if not event.step}
    shared = sorted((saved & read) - {""})
    if not shared:
        return ""
    return (
        f"the interrupted job began with {shared[0]}, which the uninterrupted one had saved: let them not share it, with {{dir}} "
        "in the arguments or a path relative to the working folder"
    )


def _resumed_from(restored: Restored, before: Recording) -> int:
    """The step of the save from which the weights are, else of the last save."""
    steps = [one.save.document.step for one in restored.ranks.values()]
    steps += [event.step for log in before.ranks.values() for event in log.noted(Saving) if event.done_ns > 0]
    return steps[0] if restored.ranks else max(steps, default=0)


def _begins_anew(whole: Recording, after: Recording, at: int) -> bool:
    """It starts with the weights with which the uninterrupted run had started, although that had moved on."""
    one, other = ({s.rank: s for s in r.states if s.document.when == "start"} for r in (whole, after))
    common = one.keys() & other.keys()
    return at > 0 and bool(common) and all(one[r].digests("weights") == other[r].digests("weights") for r in common)


def _partings(base: RunCourse, other: RunCourse, step: int) -> Iterator[tuple[int, Parting]]:
    for rank in sorted(base.ranks.keys() & other.ranks.keys()):
        mine, its = base.updates(rank, step), other.updates(rank, step)
        for optimizer in sorted(mine.keys() & its.keys()):
            found = _parting(base, other, rank, step, mine[optimizer], its[optimizer])
            if found is not None:
                yield rank, found
                break


def _parting(base: RunCourse, other: RunCourse, rank: int, step: int, mine: Update, its: Update) -> Parting | None:
    """In the order in which one follows from the other."""
    rows = base.ranks[rank].digests(mine.step, mine.optimizer)
    others = other.ranks[rank].digests(its.step, its.optimizer)
    for piece, field in _BITS:
        name = _first(rows, others, field)
        if name:
            return Parting(piece, name)
    for piece, field in _NUMBERS:
        one, two = mine.value(field), its.value(field)
        if math.isfinite(one) and math.isfinite(two) and one != two and (field != "scale" or (one and two)):
            return Parting(piece, words=f"{two:.9g} instead of {one:.9g}")
    name = _first(rows, others, "grad")
    if name:
        return Parting("gradients", name)
    buffers = {t.name for t in base.ranks[rank].tensors.values() if t.flags & TensorFlag.BUFFER}
    name = _first({n: rows[n] for n in rows if n in buffers}, others, "param")
    return Parting("buffers", name) if name else None


def _first(rows: Mapping[str, Any], others: Mapping[str, Any], field: str) -> str:
    """The first tensor that differs; one of which the uninterrupted run knows nothing cannot."""
    return next(
        (name for name, row in rows.items() if name in others and row[field] and row[field] != others[name][field]), ""
    )


def _losses(base: RunCourse, other: RunCourse, steps: range) -> Iterator[tuple[int, float, float]]:
    for step in steps[:SHOWN]:
        one, two = base.loss(step), other.loss(step)
        if math.isfinite(one) and math.isfinite(two):
            yield step, one, two
