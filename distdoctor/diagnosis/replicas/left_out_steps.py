"""Steps that some ranks left out, seen in the backward passes that come before a step on each rank."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, skipped_by
from distdoctor.diagnosis.replicas.gradients import WRAPPER, Gradients
from distdoctor.diagnosis.replicas.tensor_differences import INITIAL

Passes = Mapping[int, int]  # by rank
_MOST = 0.9  # of the steps come after as many passes as ever; in others all ranks may have left one out together


def left_out_step(parting: ReplicaDivergence, gradients: Gradients) -> tuple[int, tuple[int, ...], Passes] | None:
    """The step that some ranks made and these others left out, with the backward passes before it; None where it was not so."""
    skipped = skipped_by(parting)
    if skipped:
        return parting.step, skipped, parting.counts("backwards")
    return None if parting.exact or parting.what == INITIAL else _between_looks(parting, gradients)


def is_read_off(parting: ReplicaDivergence) -> bool:
    """Whether the very step was looked at, of replicas that a wrapper knows."""
    return parting.exact and parting.peers.by == WRAPPER


def _between_looks(parting: ReplicaDivergence, gradients: Gradients) -> tuple[int, tuple[int, ...], Passes] | None:
    """Between two sampled steps: passes are counted in every one. As many on all ranks up to there, and then a whole window
    more on some of them."""
    ranks, passes = list(parting.updates), [_passes_of(gradients, rank, parting) for rank in parting.updates]
    if any(counts is None for counts in passes):
        return None
    counts = np.array(passes)
    apart = np.flatnonzero((counts != counts[0]).any(axis=0))
    if not len(apart) or apart[0] + 1 <= parting.agreed:
        return None
    before, there = counts[:, : apart[0]], counts[:, apart[0]]
    usual = int(there.min())
    if not usual or (there % usual).any() or (before % usual).any():
        return None
    if before.size and (before == usual).mean() < _MOST:
        return None  # windows of many lengths, of which this may be one more
    skipped = tuple(rank for rank, count in zip(ranks, there, strict=True) if count > usual)
    return int(apart[0]) + 1, skipped, {rank: int(count) for rank, count in zip(ranks, there, strict=True)}


def _passes_of(gradients: Gradients, rank: int, parting: ReplicaDivergence) -> NDArray[np.int64] | None:
    """The backward passes before each of the steps up to the one in which the ranks are seen apart; None where some of them
    are no longer on record, a GradScaler is at work, or several optimizers step."""
    own = gradients.ranks[rank]
    if any(update.optimizer != parting.peers.optimizer or update.value("scale") for update in own.updates):
        return None
    rows = own.log.steps[own.log.steps["step"] <= parting.step]
    if not np.array_equal(rows["step"], np.arange(1, parting.step + 1)):
        return None
    return rows["micro_steps"].astype(np.int64)
