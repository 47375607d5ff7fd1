"""Trainings with the shape of published scripts are left alone, and are equal to the last bit under the probe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from both_ways import Bare, run_both
from jobs.published import PUBLISHED
from test_torch_algorithms import ABOUT_TIME

pytestmark = pytest.mark.job


@pytest.mark.parametrize("job", PUBLISHED, ids=lambda job: job.__name__)
def test_what_looks_unusual_and_is_right_is_left_alone(
    job: Callable[[int, int], str], tmp_path: Path, bare: Bare
) -> None:
    plain, probed, findings = run_both(job, 2, tmp_path, bare, deep=True)

    assert probed == plain
    assert [(one.code, one.title) for one in findings if one.code not in ABOUT_TIME] == []
