"""What two runs are said to have in common."""

from __future__ import annotations

from sick import own

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.run_difference import compare_runs


def test_one_group_is_no_plural() -> None:
    job = own("DD101")
    assert len(Collectives.of(job).groups) == 1

    said = {one.what: one.words for one in compare_runs(job, job)}

    assert said["collectives"].endswith(" in 1 group")
