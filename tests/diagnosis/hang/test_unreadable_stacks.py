"""Stacks that cannot be read are an error only where nothing else tells of the job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, WARNING, Severity
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.stacks import looked_at, rank


@pytest.mark.parametrize(("recorded", "severity"), [(False, ERROR), (True, WARNING)])
def test_a_job_that_records_itself_does_without_stacks(recorded: bool, severity: Severity) -> None:
    recording = looked_at(*(rank(number, trouble="py-spy is not installed") for number in range(2)))
    if recorded:
        recording = replace(recording, ranks=trained_job(2).initial().step().recording().ranks)

    checks = [one for one in PLUGINS.checks.values() if one.code == "DD608"]

    assert [one.severity for one in examine(recording, checks, live=True).findings] == [severity]
