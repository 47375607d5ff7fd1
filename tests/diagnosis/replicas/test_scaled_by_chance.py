"""Gradients of a few parameters that happen to be proportional are no sign of clipping."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.testing.gradients import trained_job


@pytest.mark.parametrize(("others", "codes"), [(2, ["DD220"]), (3, [])])
def test_a_factor_of_no_more_than_half_is_chance(others: int, codes: list[str]) -> None:
    shared, own = [f"shared{n}.bias" for n in range(3)], [f"own{n}.bias" for n in range(others)]
    job = trained_job(2, agree=(), parameters=dict.fromkeys((*shared, *own), "[4]")).initial()
    for _ in range(3):
        job.collective("all_reduce", [64, 64]).step(grads={1: 1}, params={1: 1})
    for row in job.rows[1]["digests"]:
        if row["step"]:
            row["norm"] = 0.31 if row["tensor"] <= len(shared) else 0.5 + 0.01 * row["tensor"]

    checks = [check for check in PLUGINS.checks.values() if check.code == "DD220"]

    assert [one.code for one in examine(job.recording(), checks).findings] == codes
