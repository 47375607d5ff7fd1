"""Names in the user's source are hints: what needed one is at most likely and says which; what is proven still ends the job."""

from __future__ import annotations

import pytest
from sick import PLUGINS, own

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, Finding, Stalls
from distdoctor.testing import recording

CHECKS = PLUGINS.checks


def told(source: str, ranks: int = 2) -> Finding:
    """What is said of ranks of which rank 1 alone is under the condition of this source."""
    script = recording(ranks).source("train.py", source)
    script.collective("all_reduce", [8], site="train.py:4 step", only=[rank for rank in range(ranks) if rank != 1])
    script.collective("barrier", site="train.py:3 step", only=1)
    (finding,) = examine(script.live(), CHECKS.values()).findings
    return finding


def guarded(condition: str) -> str:
    return f"def step({condition.split()[0]}):\n    if {condition}:\n        dist.barrier()\n    dist.all_reduce(x)\n"


@pytest.mark.parametrize(("condition", "word"), [("rank == 1", "rank"), ("my_rank == 1", "my_rank")])
def test_a_condition_is_about_the_rank_by_its_name_which_the_evidence_gives(condition: str, word: str) -> None:
    finding = told(guarded(condition), ranks=3)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD112", (1,), LIKELY)
    assert finding.evidence["tipped_by"] == [word]
    assert finding.stalls is Stalls.FOREVER


def test_without_the_name_the_record_says_the_same_of_the_ranks_for_certain() -> None:
    finding = told(guarded("odd == 1"), ranks=3)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD101", (1,), CERTAIN)
    assert "tipped_by" not in finding.evidence


def test_a_tie_that_a_name_breaks_is_likely() -> None:
    finding = told(guarded("rank == 1"))

    assert (finding.ranks, finding.confidence, finding.evidence["tipped_by"]) == ((1,), LIKELY, ["rank"])


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_no_finding_that_a_name_tipped_is_certain(check: Check) -> None:
    findings = examine(own(check.code), [check]).findings

    assert [one.title for one in findings if "tipped_by" in one.evidence and one.confidence is CERTAIN] == []
