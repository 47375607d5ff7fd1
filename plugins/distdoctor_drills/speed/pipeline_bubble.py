"""One pipeline stage has most of the work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

PIPELINE_BUBBLE = Drill(
    slug="pipeline-bubble",
    code="DD506",
    summary="the second stage takes 10 ms longer for each micro-batch",
    expect="DD506: the first stage waits for the second",
    plant="distdoctor_drills.speed.pipeline_bubble:plant",
    ranks=(1,),
    strategies=("pipeline",),
    arguments={"steps": 24},
)


def plant(training: Training) -> None:
    """Rank 1 sleeps in each forward, as if its stage were larger."""
    if training.rank == 1:
        training.on("training_start", slow_down)


def slow_down(training: Training) -> None:
    """Every forward of this stage takes longer from now on."""
    first = next(iter(training.arrangement.module.children()), training.arrangement.module)
    first.register_forward_pre_hook(lambda *_: time.sleep(0.010))
