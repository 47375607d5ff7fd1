"""One rank never refreshes a moving average of the model that all ranks compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from torch import nn

    from distdoctor.workloads.training import Training

STALE_COPY = Drill(
    slug="stale-copy",
    code="DD222",
    summary="the last rank never refreshes the moving average from which all ranks compute their targets",
    expect="DD222: the last rank never refreshes the copy",
    plant="distdoctor_drills.replicas.stale_copy:plant",
    ranks=(1,),
    strategies=("ddp",),
    arguments={"steps": 20},
)


def plant(training: Training) -> None:
    """A teacher beside the model."""
    import copy

    import torch

    teachers: list[nn.Module] = []

    def make(training: Training) -> None:
        teachers.append(copy.deepcopy(training.arrangement.module).requires_grad_(False))

    def teach(training: Training) -> None:
        with torch.no_grad():
            teachers[0](training.inputs)
            if training.rank < training.world_size - 1:
                for mine, other in zip(teachers[0].parameters(), training.arrangement.module.parameters(), strict=True):
                    mine.lerp_(other, 0.1)

    training.on("training_start", make)
    training.on("after_backward", teach)
