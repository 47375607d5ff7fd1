"""Gradients that are the mean over the ranks at first, and their sum later."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.testing.gradients import trained_job

OWN = {0: [1.0, 2.0, 3.0, 4.0], 1: [3.0, 2.0, 1.0, 0.0]}


def told(*factors: float, rescaled: bool = False) -> list[Finding]:
    """Of a job whose optimizer uses these multiples of the mean, step by step; the sums have a line of their own."""
    job = trained_job(2).initial()
    for step, factor in enumerate(factors, 1):
        job.collective("all_reduce", [64], site="/job/hook.py:31 chunked" if factor == 2 else "/job/hook.py:22 whole")
        roots = "div 2;NllLoss mean" if rescaled and factor == 2 else "NllLoss mean"
        job.step(roots=roots).spot(step, own=OWN, used=[2.0 * factor] * 4)
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD209"]
    return list(examine(job.recording(sources={}), checks).findings)


def test_a_mean_that_becomes_a_sum_is_told_with_the_step_and_the_line_that_sums() -> None:
    (finding,) = told(1, 1, 1, 2, 2, 2)

    assert (finding.ranks, finding.confidence, finding.evidence["step"]) == ((0, 1), LIKELY, 4)
    assert finding.title.startswith("from step 4 on gradients are summed over the ranks")
    assert finding.place.line == 31


def test_between_steps_that_are_looked_at_the_title_says_by_when() -> None:
    """Elements are sampled in the first steps, and in a few from each power of two on."""
    job = trained_job(2).initial()
    for step in range(1, 36):
        job.step(roots="NllLoss mean")
        if step <= 8 or 16 <= step < 19 or step >= 32:
            job.spot(step, own=OWN, used=[4.0 if step > 30 else 2.0] * 4)
    (finding,) = PLUGINS.checks["DD209"].look(job.recording(sources={}))

    assert finding.title.startswith("from some step after 18 on, by step 32, gradients are summed over the ranks")


@pytest.mark.parametrize("factors", [(1, 1, 1, 1), (1, 1, 2, 1, 2), (1, 2, 2, 2), (1, 1, 3, 3, 3)])
def test_factors_that_do_not_stay_are_left_alone(factors: tuple[float, ...]) -> None:
    assert told(*factors) == []


def test_a_loss_that_is_divided_at_the_same_step_makes_the_sum_right() -> None:
    assert told(1, 1, 1, 2, 2, 2, rescaled=True) == []
