"""Averaged gradients are clipped by a norm that includes what each rank holds alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

NORM_OVER_WRONG_RANKS = Drill(
    slug="norm-over-wrong-ranks",
    code="DD220",
    summary="averaged gradients are clipped by a norm that includes what each rank holds alone",
    expect="DD220: ranks scale their shared gradients by different factors",
    plant="distdoctor_drills.replicas.norm_over_wrong_ranks:plant",
    ranks=(),
    strategies=("tensor",),
    arguments={"steps": 20},
)


def plant(training: Training) -> None:
    """The norm of this rank's shards, for all that it holds: the split weights and the whole ones."""

    def clip(training: Training) -> None:
        held = [p.grad for p in training.arrangement.module.parameters() if p.grad is not None]
        local = [getattr(grad, "_local_tensor", grad) for grad in held]
        norm = torch.stack([part.square().sum() for part in local]).sum().sqrt()
        for part in local:
            part.mul_(0.05 / norm)

    training.on("before_optimizer_step", clip)
