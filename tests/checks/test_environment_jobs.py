"""What ranks compute with, on a real job that has too many threads and on its healthy twin."""

from __future__ import annotations

import os

import pytest
from jobs import speed as jobs

from distdoctor.diagnosis.examination import examine
from distdoctor.plugins import load

pytestmark = pytest.mark.job


@pytest.mark.parametrize("crowded", [True, False])
def test_more_threads_than_cores_are_told_where_they_are_set(crowded: bool) -> None:
    threads = 4 * len(os.sched_getaffinity(0)) if crowded else 1

    recording = jobs.watched(jobs.multiplying, threads=threads)

    told = examine(recording, [load().checks["DD607"]]).findings
    line = jobs.line("# threads of each rank")
    assert [(one.ranks, one.place.line) for one in told] == ([((0, 1), line)] if crowded else [])
