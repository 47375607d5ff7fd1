"""A loss that is divided by the count of its whole window, and by the number of micro-batches once more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.testing.timing import timed_job

COUNTS = (406, 365, 368, 355)


def told(roots: Sequence[str], *, ranks: int = 2) -> list[Finding]:
    """Four micro-batches in each step, whose loss reads so in one step after the other."""
    job = timed_job(ranks)
    for root in roots:
        job.steps(1, micro_steps=4, roots=root)
    return list(examine(job.recording(), [PLUGINS.checks["DD208"]]).findings)


def test_the_count_of_the_window_and_the_micro_batches_divide_twice() -> None:
    (finding,) = told([f"div 4;div {count};mul 2;NllLoss sum" for count in COUNTS])

    assert finding.confidence == LIKELY
    assert finding.title == (
        "gradients are 4 times too small: the loss is divided by the count of all 4 micro-batches, and by 4 once more"
    )


@pytest.mark.parametrize(
    "roots",
    [
        [f"div {count};mul 2;NllLoss sum" for count in COUNTS],
        ["div 4;div 512;mul 2;NllLoss sum"] * 4,
        [f"div 4;div {count};NllLoss sum" for count in COUNTS],
        [f"div 4;div {count} own;mul 2;NllLoss sum" for count in COUNTS],
    ],
    ids=["once", "a fixed number of items", "not by the count of all ranks", "a count of each micro-batch"],
)
def test_what_may_be_meant_is_not_told(roots: Sequence[str]) -> None:
    assert told(roots) == []


def test_of_other_numbers_of_ranks_nothing_is_known() -> None:
    assert told([f"div 4;div {count};mul 2;NllLoss sum" for count in COUNTS], ranks=3) == []
