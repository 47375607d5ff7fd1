"""The table of replicas and the checks never contradict each other: both are made of the same divergences."""

from __future__ import annotations

import math

import pytest
from sick import PLUGINS, diagnosis_of, own

from distdoctor.diagnosis.examination import examine
from distdoctor.report import replica_table
from distdoctor.testing.gradients import trained_job

CHECKS = PLUGINS.checks


@pytest.mark.parametrize("name", ["sick", "healthy"])
@pytest.mark.parametrize("code", [code for code in CHECKS if code.startswith(("DD2", "DD8", "DD121"))])
def test_the_table_says_differ_exactly_where_a_check_explains_a_divergence(code: str, name: str) -> None:
    findings = diagnosis_of(code, name).findings
    diverged = any("replicas" in fact for finding in findings for fact in finding.explains)

    assert ("DIFFER" in replica_table.render(own(code, name))) == diverged


def test_a_flipped_bit_that_the_step_swallows_is_in_the_table_as_in_the_finding() -> None:
    recording = trained_job(3).initial().step().step(grads={1: 1}, names=["head.weight"]).step().recording()
    (finding,) = examine(recording, CHECKS.values()).findings

    assert finding.title.startswith("step 2")
    assert "DIFFER since step 2: ranks 0,2 | rank 1" in replica_table.render(recording)


def test_gradients_that_are_not_finite_do_not_agree() -> None:
    job = trained_job(2).initial().step()
    recording = job.step(norms={0: math.nan, 1: math.nan}).step(norms={0: math.inf, 1: math.nan}).recording()

    table = replica_table.render(recording)

    assert table.count("NaN or inf first in step 2") == len(table.splitlines()) - 2
    assert table.count("agree before step 2 (") >= len(table.splitlines()) - 2
    finite_again = job.step(norms={0: math.inf, 1: math.inf}).step().recording()
    assert "agree before" not in replica_table.render(finite_again)  # a scaler has left that step out
    assert "NaN" not in replica_table.render(trained_job(2).initial().step().recording())
