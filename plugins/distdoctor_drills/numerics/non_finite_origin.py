"""One sample of one rank holds a NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

NON_FINITE_ORIGIN = Drill(
    slug="non-finite-origin",
    code="DD801",
    summary="rank 1 reads a NaN in step 4",
    expect="DD801: the loss of rank 1 is nan in step 4",
    plant="distdoctor_drills.numerics.non_finite_origin:plant",
    ranks=(1,),
    strategies=("ddp", "fsdp"),
)


def plant(training: Training) -> None:
    """A broken sample."""

    def spoil(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            training.inputs.view(-1)[0] = float("nan")

    training.on("micro_step_start", spoil)
