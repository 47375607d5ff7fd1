"""Which ranks are stages of one pipeline: told by torch's schedules, or by the gradients that they send each other."""

from __future__ import annotations

import math

from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.recording.trace.layout import POINT_TO_POINT

PIPELINE = "pipeline"  # what starts a backward pass, where a schedule of torch's pipelining does


def pipeline_stages(gradients: Gradients) -> list[int]:
    """The ranks whose backward passes a schedule of torch's pipelining starts; or all that exchange messages, of which some begin
    their backward passes with a gradient that they got."""
    scheduled = [rank for rank, own in gradients.ranks.items() if _is_stage({u.roots for u in own.updates if u.step})]
    if scheduled:
        return scheduled
    optimizers = {u.optimizer for own in gradients.ranks.values() for u in own.updates if u.step}
    fed = {rank for rank in gradients.ranks for optimizer in optimizers if is_fed(gradients, optimizer, rank)}
    return [rank for rank in gradients.ranks if _exchanges_messages(gradients, rank)] if fed else []


def is_fed(gradients: Gradients, optimizer: int, rank: int) -> bool:
    """Whether a rank exchanges messages and has no loss of its own: its backward passes begin with a gradient that it got."""
    updates = [
        u for u in gradients.ranks[rank].updates if u.optimizer == optimizer and u.step and u.digested and u.roots
    ]
    return _exchanges_messages(gradients, rank) and bool(updates) and all(map(_begins_with_a_gradient, updates))


def _begins_with_a_gradient(update: Update) -> bool:
    return update.roots == PIPELINE or math.isnan(update.loss)


def _exchanges_messages(gradients: Gradients, rank: int) -> bool:
    return bool(set(gradients.ranks[rank].log.calls["op"].tolist()) & {int(op) for op in POINT_TO_POINT})


def _is_stage(roots: set[str]) -> bool:
    return bool(roots) and roots <= {PIPELINE, ""} and PIPELINE in roots
