"""A checkpoint without the position in the epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RESUME_BREAKS_PARTITION = Drill(
    slug="resume-breaks-partition",
    code="DD704",
    summary="a resumed job starts the current epoch over (shows up with `check-data --resume`, which resumes)",
    expect="DD704, with `check-data --resume`: the samples drawn before the checkpoint are drawn again",
    plant="distdoctor_drills.data.resume_breaks_partition:plant",
    strategies=("ddp", "fsdp", "amp", "single"),
    arguments={"epochs": 2},
)


def plant(training: Training) -> None:
    """Restore everything but how many steps of the epoch were done."""
    usual = training.resume

    def resume() -> int:
        usual()
        return 0

    training.replace("resume", resume)
