"""How much of a job was seen is worked out once, however often the checks and the report ask."""

from __future__ import annotations

import pytest

from distdoctor.recording import coverage
from distdoctor.recording.coverage import Coverage
from distdoctor.recording.rank_set import spans


def test_ranks_that_left_nothing_are_listed_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    named = coverage.named

    def listed(ranks: tuple[int, ...]) -> str:
        asked.append(len(ranks))
        return named(ranks)

    monkeypatch.setattr(coverage, "named", listed)
    seen = Coverage(expected=1000, whole=(0,), missing=tuple(range(1, 1000)))

    assert [seen.sentence for _ in range(3)] == ["1 of 1000 ranks seen: ranks 1-999 left no recording"] * 3
    assert not seen.all_ranks
    assert asked == [999]


@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        ((), []),
        ((5,), [(5, 5)]),
        ((3, 1, 2, 2), [(1, 3)]),
        ((0, 1, 3), [(0, 1), (3, 3)]),
    ],
)
def test_runs_of_ranks_are_the_longest_there_are(ranks: tuple[int, ...], runs: list[tuple[int, int]]) -> None:
    assert spans(ranks) == runs
