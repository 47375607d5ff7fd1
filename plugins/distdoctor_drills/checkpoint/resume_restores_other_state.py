"""A resume that loses the state of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RESUME_RESTORES_OTHER_STATE = Drill(
    slug="resume-restores-other-state",
    code="DD706",
    summary="a resumed job starts with an empty optimizer (shows up with `check-resume`, which resumes)",
    expect="DD706, with `check-resume`: the optimizer state is gone",
    plant="distdoctor_drills.checkpoint.resume_restores_other_state:plant",
    strategies=("ddp", "amp", "single"),
    arguments={"steps": 6},
)


def plant(training: Training) -> None:
    """Restore everything but the optimizer's state."""
    usual = training.resume

    def resume() -> int:
        steps_done = usual()
        training.optimizer.state.clear()
        return steps_done

    training.replace("resume", resume)
