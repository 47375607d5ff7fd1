"""Replicas that train on the same batches where no loader tells: what their models are given is equal, and so are the losses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.diagnosis.replicas.used_factor import APART, has_dropout, own_elements

LEAST, LEAST_LIVE = 4, 12  # steps; fewer are alike by chance, or are the padded end of the data
Look = dict[int, Update]  # of each rank, in one step
RISING = 0.25  # of all steps: where inputs are not seen, a loss that hardly ever rises may be that of one batch, again and again


@dataclass(frozen=True)
class SameBatches:
    """Ranks that average gradients of the same data in all `updates` of the first of them, which were looked at.

    `before`: when the last look was in which every rank had data of its own, wall ns; 0 where they were the same from the start.
    `inputs`: how many different inputs there were, 0 where only losses and gradients tell.
    """

    replicas: ReplicaSet
    updates: Sequence[Update]
    before: int
    inputs: int
    dropout: bool


def same_batches(gradients: Gradients, replicas: Replicas) -> Iterator[SameBatches]:
    """What holds for a set of replicas from some look on to the last one."""
    least = LEAST_LIVE if gradients.recording.job.running else LEAST  # a trial of the first steps may be meant
    for one in replicas.sets:
        if len(one.ranks) > 1 and set(one.ranks) <= gradients.ranks.keys():
            looks = _looks(gradients, one)
            seen = [look for look in looks if all(update.inputs for update in look.values())]
            dropout = has_dropout(gradients, one.ranks)
            found = _by_inputs(one, seen, dropout, least) if seen else _by_losses(gradients, one, looks, least)
            if found is not None:
                yield found


def _looks(gradients: Gradients, one: ReplicaSet) -> list[Look]:
    """The steps that were looked at on all ranks, in order."""
    looks: dict[tuple[int, int], Look] = defaultdict(dict)
    for rank in one.ranks:
        for update in gradients.ranks[rank].updates:
            if update.step and update.digested:
                looks[update.optimizer, update.step][rank] = update
    whole = [look for look in looks.values() if len(look) == len(one.ranks)]
    return sorted(whole, key=lambda look: look[one.ranks[0]].at_ns)


def _by_inputs(one: ReplicaSet, looks: list[Look], dropout: bool, least: int) -> SameBatches | None:
    begin = _since(looks, lambda look: _equal_inputs(look, dropout))
    alike, before = [look[one.ranks[0]] for look in looks[begin:]], looks[:begin]
    inputs = len({update.inputs for update in alike})
    parted = len(before) >= LEAST - 1 and all(map(_each_its_own, before))
    if inputs < least or (before and not parted):
        return None
    return SameBatches(one, alike, before[-1][one.ranks[0]].at_ns if before else 0, inputs, dropout)


def _by_losses(gradients: Gradients, one: ReplicaSet, looks: list[Look], least: int) -> SameBatches | None:
    """Where nobody sees what a model is given: from the start only, and where the ranks' own gradients are equal as well."""
    alike = [look[one.ranks[0]] for look in looks]
    same = len(alike) >= least and all(len({update.loss for update in look.values()}) == 1 for look in looks)
    return SameBatches(one, alike, 0, 0, False) if same and _rises(alike) and _equal_gradients(gradients, one) else None


def _since(looks: list[Look], same: Callable[[Look], bool]) -> int:
    return next((at for at in range(len(looks), 0, -1) if not same(looks[at - 1])), 0)


def _equal_inputs(look: Look, dropout: bool) -> bool:
    """Given the same, and no rank has made something of its own of it: a part of the batch, noise that is not a dropout's."""
    losses = [update.loss for update in look.values() if math.isfinite(update.loss)]
    apart = bool(losses) and max(losses) - min(losses) > APART * max(map(abs, losses))
    return len({update.inputs for update in look.values()}) == 1 and (dropout or not apart)


def _each_its_own(look: Look) -> bool:
    return len({update.inputs for update in look.values()}) == len(look)


def _rises(updates: Sequence[Update]) -> bool:
    losses = [update.loss for update in updates]
    return sum(later > earlier for earlier, later in pairwise(losses)) >= RISING * len(losses)


def _equal_gradients(gradients: Gradients, one: ReplicaSet) -> bool:
    """Whether each rank's own gradients are those of the others, in the elements that were kept: a loss that is a mean over the
    ranks is equal on all of them, but the gradients are not."""
    own = own_elements(gradients, one.ranks)
    whole = [values for values in own.values() if len(values) == len(one.ranks) and any(map(any, values))]
    return len(whole) >= LEAST and all(len(set(values)) == 1 for values in whole)
