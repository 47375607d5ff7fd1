"""A job that pauses is a healthy job: under --on-hang abort none is touched. benchmarks/pauses.py has all places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Command

pytestmark = pytest.mark.job
JOBS = Path(__file__).parent.parent / "jobs" / "pauses.py"
SECONDS = 22  # stacks are taken after 10 s, and again after 15: both see the pause
PLACES = ("before_init", "in_subprocess", "in_worker", "while_stopped", "while_saving", "in_c")


def test_a_job_that_pauses_for_long_is_never_touched(start: Callable[..., Command]) -> None:
    jobs = {}
    for place in PLACES:
        jobs[place] = start(
            "run", "--nproc", 2, "--on-hang", "abort", "--run-dir", f"run-{place}", JOBS, place, SECONDS
        )

    ended = {place: job.finish() for place, job in jobs.items()}

    assert {place: done.code for place, done in ended.items()} == dict.fromkeys(PLACES, 0), ended
    assert all("healthy" in done.err for done in ended.values()), ended
    told = [place for place, done in ended.items() if "found while the job runs" in done.err]
    assert told, "nothing was said of any pause: the test asks nothing"
    for place in told:
        assert "withdrawn, the job went on after" in ended[place].err, ended[place].err
