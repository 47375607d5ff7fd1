"""What a test in ranks is told to have come to."""

from __future__ import annotations

import pytest

from distdoctor.pytest_plugin.in_rank import RankOutcome
from distdoctor.pytest_plugin.mark import RankMark
from distdoctor.pytest_plugin.ranks_repr import RanksRepr, location_of
from distdoctor.pytest_plugin.reports import TestResult
from distdoctor.recording.recording import RankEnd


def test_ranks_that_end_by_themselves_while_they_are_looked_at_were_late(request: pytest.FixtureRequest) -> None:
    outcomes, ends = {rank: RankOutcome(rank) for rank in (0, 1)}, {rank: RankEnd(exit_code=0) for rank in (0, 1)}
    result = TestResult(request.node, RankMark(timeout=8.0), outcomes, ends, late=True)

    assert not result.passed
    assert result.headline == "ranks 0-1 did not end within 8 s"
    assert RanksRepr(result.headline, result.reports, location_of(request.node)).reprcrash.message == result.headline


def test_a_rank_that_leaves_without_an_error_is_told(request: pytest.FixtureRequest) -> None:
    ends = {rank: RankEnd(exit_code=0) for rank in (0, 1)}
    result = TestResult(request.node, RankMark(), {0: RankOutcome(0)}, ends, late=False)

    assert result.headline == "rank 1 ended with exit code 0 before its test was over"
