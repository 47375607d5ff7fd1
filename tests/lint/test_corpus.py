"""Scripts that people write: what is wrong with them is named, and what is right stays unmentioned."""

from __future__ import annotations

import pytest
from corpus_cases import Case, cases

from distdoctor.diagnosis.finding import NOTE
from distdoctor.lint.examine import examine


def _named(case: Case) -> str:
    return case.name


@pytest.mark.parametrize(
    "case",
    [
        *cases("before_sick.txt"),
        *cases("after_sick.txt"),
        *cases("tutorials.txt"),
        *cases("list_sick.txt"),
        *cases("missed_at_first.txt"),
        *cases("over_functions_sick.txt"),
    ],
    ids=_named,
)
def test_what_is_wrong_is_named(case: Case) -> None:
    seen = examine(case.files)

    assert not seen.failed
    assert case.code in {finding.code for finding in seen.findings}


@pytest.mark.parametrize(
    "case",
    [
        *cases("before_healthy.txt"),
        *cases("after_healthy.txt"),
        *cases("fixed_after_reading.txt"),
        *cases("list_healthy.txt"),
        *cases("over_functions_healthy.txt"),
    ],
    ids=_named,
)
def test_what_is_right_is_left_alone(case: Case) -> None:
    seen = examine(case.files)

    assert not seen.failed
    assert [f.title for f in seen.findings if f.code == case.code or (f.severity or NOTE) > NOTE] == []
