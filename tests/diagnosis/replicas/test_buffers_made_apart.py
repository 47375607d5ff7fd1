"""Buffers that differ since the model was made: told as such, once, and behind what is certain."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.trace.layout import TensorFlag
from distdoctor.testing.gradients import TrainedJob, trained_job


def told(job: TrainedJob) -> Finding:
    (found,) = examine(job.recording(), [one for one in PLUGINS.checks.values() if one.code == "DD204"]).findings
    return found


def test_buffers_that_no_step_changes_were_drawn_apart() -> None:
    job = trained_job(2, buffers={"noise": int(TensorFlag.BUFFER)}).initial()
    for _ in range(3):
        job.step(buffers={1: 1})
    for rank, rows in enumerate(job.rows):
        for row in rows["digests"]:
            if row["step"] and row["tensor"] == len(job.names) + 1:
                row["param"] = 7 + rank

    assert "drawn differently on each rank when the model was made" in told(job).why
    assert told(job).prescriptions[0].change.startswith("Seed all ranks alike before the model is built")


def test_buffers_that_steps_change_follow_each_ranks_data() -> None:
    job = trained_job(2, buffers={"mean": int(TensorFlag.BUFFER)}).initial()
    for _ in range(3):
        job.step(buffers={1: 1})

    assert told(job).why.startswith("they follow each rank's own data")
