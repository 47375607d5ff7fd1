"""Each rank clips its own gradients before they are averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.arrangement import Arrangement
    from distdoctor.workloads.training import Training

LOCAL_NORM_CLIPPING = Drill(
    slug="local-norm-clipping",
    code="DD215",
    summary="each rank clips gradients by its own norm, and they are averaged by hand afterwards",
    expect="DD215: each rank clips its gradients by its own norm before they are averaged",
    plant="distdoctor_drills.replicas.local_norm_clipping:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"by_hand": True, "steps": 20},
)


def plant(training: Training) -> None:
    """Clip first, average then."""
    usual = training.average_gradients

    def average_gradients(arrangement: Arrangement) -> None:
        nn.utils.clip_grad_norm_(arrangement.module.parameters(), 0.1)
        usual(arrangement)

    training.replace("average_gradients", average_gradients)
