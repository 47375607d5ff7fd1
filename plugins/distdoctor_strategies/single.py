"""Training in one process on one device: what every other strategy is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Strategy
from distdoctor.workloads.request import TrainingRequest, refuse_offload, require_even_shares

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SINGLE = Strategy(
    name="single",
    summary="one process, one device; the baseline of all others",
    train="distdoctor_strategies.single:train",
    world_sizes="1; more ranks have nothing to do",
)


def validate(request: TrainingRequest, world_size: int) -> None:
    refuse_offload(request)
    require_even_shares(request, 1)


def train(training: Training) -> None:
    """Train the plain module."""
    from distdoctor.workloads.arrangement import Alone

    if training.left_to_rank_zero():
        return
    training.fit(Alone(training.make_model(), precision=training.precision))
