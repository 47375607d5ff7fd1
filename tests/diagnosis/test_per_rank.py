"""Facts that are worked out for whoever asks are those that would be kept, and so is every verdict."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis import per_rank
from distdoctor.diagnosis.per_rank import PerRank
from tests.sick import PLUGINS, diagnosis_of, fresh_diagnosis_of, own

CHECKS = sorted(PLUGINS.checks)


def test_so_many_facts_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_rank, "KEPT", 2)
    asked: list[int] = []
    facts = PerRank([3, 1, 2], lambda rank: asked.append(rank) or 10 * rank)

    assert list(facts.items()) == list(facts.items()) == [(3, 30), (1, 10), (2, 20)]
    assert asked == [3, 1, 2, 2]
    assert 7 not in facts
    with pytest.raises(KeyError):
        facts[7]


@pytest.mark.parametrize("code", CHECKS)
def test_no_verdict_depends_on_how_many_are_kept(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_rank, "KEPT", 0)
    found = fresh_diagnosis_of(own(code))

    assert found.findings == diagnosis_of(code).findings
