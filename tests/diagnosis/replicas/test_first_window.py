"""Replicas that part while the job runs: what a window of local training looks like, before its end has been seen."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.replicas.divergence import LONGEST_WINDOW
from distdoctor.testing.gradients import TrainedJob, trained_job


def told(job: TrainedJob, *, running: bool) -> list[str]:
    return [finding.code for finding in examine(job.recording(running=running), PLUGINS.checks.values()).findings]


def local(job: TrainedJob, steps: int, skip: int = 0) -> TrainedJob:
    for _ in range(steps):
        job.step(grads={1: 1}, params={1: 1}, synced=0, unsynced=1, skip=skip)
    return job


def test_a_window_of_local_training_may_yet_end_while_the_job_runs() -> None:
    job = local(trained_job(2).initial().step(), 5)

    assert told(job, running=True) == []
    assert told(job, running=False) == ["DD207"]


def test_replicas_that_stay_apart_for_longer_than_any_window_are_told_while_the_job_runs() -> None:
    job = local(trained_job(2).initial().step(), 4, skip=LONGEST_WINDOW // 3)

    assert told(job, running=True) == ["DD207"]


@pytest.mark.parametrize(
    "about", [{"params": {1: 1}}, {"grads": {1: 1}, "params": {1: 1}}], ids=["weights", "gradients"]
)
def test_one_tensor_that_parts_is_no_local_training_and_told_at_once(about: dict[str, dict[int, int]]) -> None:
    job = trained_job(2).initial().step().step(names=["head.weight"], **about)

    assert len(told(job, running=True)) == 1
