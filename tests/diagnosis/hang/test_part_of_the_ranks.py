"""Where a host saw only its own ranks, the fewer among these need not be the fewer of the job."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Confidence, Finding
from distdoctor.testing import Script, recording

HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]
BARRIER = """\
def train():
    for step in range(4):
        dist.all_reduce(t)
    if {condition}:
        dist.barrier()
    dist.all_reduce(t)
"""


def told(script: Script, *unseen: int) -> list[tuple[tuple[int, ...], Confidence, bool]]:
    """Of the job of which these ranks left nothing: who is named, how sure that is, and whether it is left open which side."""
    found: list[Finding] = list(examine(script.unrecorded(list(unseen)).live(), HANGS, PLUGINS.remedies).findings)
    return [(one.ranks, one.confidence, one.undecided) for one in found if one.severity.name == "ERROR"]


def parted(ranks: int, called: list[int], condition: str = "") -> Script:
    """These ranks call a barrier that the others do not call; with a source where there is a condition."""
    script = recording(ranks)
    script = script.source("train.py", BARRIER.format(condition=condition)) if condition else script
    for _ in range(4):
        script.collective("all_reduce", [4], site="train.py:3 train")
    script.collective("barrier", only=called, site="train.py:5 train")
    others = [rank for rank in range(ranks) if rank not in called]
    return script.collective("all_reduce", [4], only=others, site="train.py:6 train")


@pytest.mark.parametrize(("condition", "called"), [("rank != 3", [0, 1, 2]), ("rank == 3", [3]), ("rank >= 3", [3])])
@pytest.mark.parametrize("unseen", [(0, 1), (0,), (1, 2), ()])
def test_a_condition_on_the_rank_counts_the_ranks_that_nobody_saw(
    condition: str, called: list[int], unseen: tuple[int, ...]
) -> None:
    ((ranks, confidence, undecided),) = told(parted(4, called, condition), *unseen)

    assert (ranks, undecided) == ((3,), False)
    assert confidence is LIKELY


def test_without_a_source_two_ranks_of_four_disagree_and_neither_is_named_alone() -> None:
    ((ranks, _, undecided),) = told(parted(4, [0, 1, 2]), 0, 1)

    assert (sorted(ranks), undecided) == ([2, 3], True)


def test_the_fewer_of_less_than_half_of_the_ranks_are_not_named_alone() -> None:
    """Ranks 0-2 alone call it. Who sees ranks 0-3 sees three against one, and the other eight are with that one."""
    ((ranks, _, undecided),) = told(parted(12, [0, 1, 2]), *range(4, 12))

    assert (sorted(ranks), undecided) == ([0, 1, 2, 3], True)


def test_the_fewer_of_most_of_the_ranks_are_named() -> None:
    ((_, _, half_is_undecided),) = told(parted(6, [5]), 0, 1, 2)

    assert half_is_undecided
    assert told(parted(6, [5]), 0, 1) == told(parted(6, [5]), 0) == [((5,), LIKELY, False)]
