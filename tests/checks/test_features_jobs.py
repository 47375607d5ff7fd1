"""Losses over all ranks' features: on real jobs, an ill one and its twin."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import features as jobs
from jobs.replicas import watched
from test_copies_jobs import found

from distdoctor.diagnosis.finding import ERROR, LIKELY

pytestmark = pytest.mark.job


def test_targets_that_forget_the_rows_of_the_ranks_before_are_told_with_their_line() -> None:
    (finding,) = found(watched(jobs.compared, ranks=3)[0])
    lines = Path(jobs.__file__).read_text("utf-8").splitlines()

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD224", ERROR, LIKELY, (1, 2))
    assert "# of the first rank" in lines[finding.place.line - 1]


def test_targets_that_are_shifted_to_the_ranks_own_rows_are_silent() -> None:
    assert [one.title for one in found(watched(jobs.compared, shifted=True)[0])] == []
