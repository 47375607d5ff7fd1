"""What torch itself offers and what papers describe is healthy: closures, local SGD, Join, hooks, copies, gathers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from both_ways import Bare, run_both
from jobs.by_design import PAIRS, THREES

pytestmark = pytest.mark.job

# Tiny steps on a loaded machine: where their time goes says nothing.
ABOUT_TIME = {"DD123", "DD503", "DD504", "DD505", "DD507", "DD508", "DD511"}


@pytest.mark.parametrize("job", PAIRS, ids=lambda job: job.__name__)
def test_two_ranks_are_left_alone_and_equal_to_the_last_bit(
    job: Callable[[int, int], str], tmp_path: Path, bare: Bare
) -> None:
    plain, probed, findings = run_both(job, 2, tmp_path, bare)

    assert probed == plain
    assert [(one.code, one.title) for one in findings if one.code not in ABOUT_TIME] == []


@pytest.mark.parametrize("job", THREES, ids=lambda job: job.__name__)
def test_three_ranks_of_which_two_belong_together(job: Callable[[int, int], str], tmp_path: Path, bare: Bare) -> None:
    plain, probed, findings = run_both(job, 3, tmp_path, bare)

    assert probed == plain
    assert [(one.code, one.title) for one in findings if one.code not in ABOUT_TIME] == []
