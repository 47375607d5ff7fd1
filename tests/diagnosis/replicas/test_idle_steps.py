"""A schedule that is over long before the training."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import Finding
from distdoctor.testing.gradients import TrainedJob, trained_job

SOURCE = "\n" * 30 + "loss.backward()\n\noptimizer.step()\nscheduler.step()\n"


def told(job: TrainedJob) -> list[Finding]:
    return PLUGINS.checks["DD218"].look(job.recording(sources={"/job/train.py": SOURCE}))


def trained(moving: int, idle: int, *, changes: bool = False) -> TrainedJob:
    job = trained_job(2).initial()
    for _ in range(moving):
        job.step()
    for _ in range(idle):
        job.step(lr=0.0, frozen=not changes)
    return job


def test_steps_that_change_nothing_at_a_rate_of_zero_are_told_at_the_line_that_moves_the_schedule() -> None:
    (finding,) = told(trained(20, 12))

    assert (finding.confidence, finding.severity.word, finding.ranks) == ("likely", "warning", (0, 1))  # type: ignore[union-attr]
    assert "from step 21 on: 12 steps or more changed nothing" in finding.title
    assert (finding.place.line, finding.prescriptions[0].slug) == (34, "as-long-as-the-training")


@pytest.mark.parametrize(
    ("moving", "idle", "changes"),
    [(20, 9, False), (200, 20, False), (20, 12, True), (0, 30, False)],
    ids=["a few", "the last tenth", "another group moves", "never moved"],
)
def test_a_schedule_that_ends_with_the_training_is_silent(moving: int, idle: int, changes: bool) -> None:
    assert told(trained(moving, idle, changes=changes)) == []
