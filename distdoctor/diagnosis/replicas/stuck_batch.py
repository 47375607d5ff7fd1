"""A replica that trains on one and the same batch, while the others go on to new ones: its source of data has come to an end, or
has failed, and whatever stands before it hands out the last batch again.

Told by what the model is given. Ranks that all repeat a batch do so by design (a trial that overfits, the whole data in one
batch); so does one that repeats a batch whose loss is nothing, to keep in step with ranks that have more data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import Update

LEAST = 12  # looks in a row, the last ones
BEFORE = 4  # other batches that the rank had been given


@dataclass(frozen=True)
class StuckBatch:
    """`rank` was given new batches up to `since`, and none after it, in `looks` steps that were looked at; `last` is the last."""

    rank: int
    others: tuple[int, ...]
    since: Update
    last: Update
    looks: int


def stuck_batches(gradients: Gradients, replicas: Replicas) -> Iterator[StuckBatch]:
    """Of every set of replicas in which others go on to new batches at the same time."""
    for one in replicas.sets:
        given = {rank: _given(gradients, rank) for rank in one.ranks if rank in gradients.ranks}
        if len(given) < 2 or len(given) < len(one.ranks):
            continue
        stuck = {rank: looks for rank, own in given.items() if (looks := _repeated(own))}
        for rank, looks in stuck.items():
            others = [other for other in given if other not in stuck]
            if others and all(_is_new(given[other], looks[0].step) for other in others):
                yield StuckBatch(rank, tuple(others), looks[0], looks[-1], len(looks))


def _given(gradients: Gradients, rank: int) -> list[Update]:
    """The steps of which it is known what the model was given."""
    return [update for update in gradients.ranks[rank].updates if update.step and update.inputs]


def _repeated(given: list[Update]) -> list[Update]:
    """The last steps, where they were given one batch over and over, and others before."""
    last = given[-1].inputs if given else 0
    begin = next((at for at in range(len(given), 0, -1) if given[at - 1].inputs != last), 0)
    before = {update.inputs for update in given[:begin]}
    looks = given[begin:]
    counts = sum(update.loss != 0 for update in looks) > len(looks) / 2  # without weight it only keeps the rank in step
    return looks if len(looks) >= LEAST and len(before) >= BEFORE and last not in before and counts else []


def _is_new(given: list[Update], since: int) -> bool:
    """Whether most of the steps from there on were given a batch that no other of them was given."""
    later = [update.inputs for update in given if update.step >= since]
    return len(later) >= LEAST and len(set(later)) > len(later) // 2
