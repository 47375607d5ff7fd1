"""One rank raises an exception that nothing catches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RANK_DIED = Drill(
    slug="rank-died",
    code="DD110",
    summary="rank 1 raises ValueError in step 3",
    expect="DD110: rank 1, ValueError, with its line",
    plant="distdoctor_drills.hang.rank_died:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 finds something that it cannot read."""

    def fail(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            raise ValueError("sample 57 has no label")

    training.on("step_start", fail)
