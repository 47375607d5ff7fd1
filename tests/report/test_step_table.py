"""The table that ends a run: where the time of the steps went, by rank."""

from __future__ import annotations

import sys

from sick import PLUGINS

from distdoctor.diagnosis.speed.step_times import step_times
from distdoctor.recording.recording import Job, Recording
from distdoctor.report.step_table import step_table
from distdoctor.testing.timing import timed_job

CHECKS = PLUGINS.checks


def test_the_phases_of_a_step_add_up_to_it() -> None:
    recording = sys.modules[CHECKS["DD504"].module].sick()

    table = step_table(recording)

    assert table is not None
    assert table.lines()[1:] == [
        "  rank     step         data      forward     backward      waiting   optimizer",
        "     0  83.0 ms   1.0 ms  1%  20.0 ms 24%  30.0 ms 36%  30.0 ms 36%  2.0 ms  2%",
        "     1  83.0 ms  30.0 ms 36%  20.0 ms 24%  30.0 ms 36%   1.0 ms  1%  2.0 ms  2%",
        "  rank 1 needs 29.0 ms more of each step, most in data; rank 0 waits",
    ]
    for times in step_times(recording):
        assert sum(times.of(phase) for phase in times.phases) == times.step


def test_a_job_without_steps_has_no_table() -> None:
    assert step_table(Recording(Job(), {})) is None


def test_no_rank_is_named_where_no_column_shows_what_it_needs_more_time_for() -> None:
    job = timed_job(2)
    for _ in range(15):
        job.steps(1, data={1: 31}).steps(1, forward={1: 50}).steps(1, backward={1: 60})

    table = step_table(job.recording())

    assert table is not None
    assert len(table.lines()) == 4


def test_no_rank_is_named_after_a_few_steps() -> None:
    for steps, lines in ((5, 4), (15, 5)):
        job = timed_job(2)
        for _ in range(steps):
            job.steps(1, data={1: 31})

        table = step_table(job.recording())

        assert table is not None
        assert len(table.lines()) == lines


def test_loaders_that_are_only_read_have_no_table() -> None:
    job = timed_job(2)
    for _ in range(15):
        job.steps(1, data=30, forward=0, backward=0, transfer=0)

    assert step_table(job.recording()) is None
