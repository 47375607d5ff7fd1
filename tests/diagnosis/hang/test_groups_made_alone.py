"""A group that its members made without the others, in a job that came through all the same."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.finding import LIKELY, WARNING, Finding
from distdoctor.plugins import load
from distdoctor.recording.trace.events import NewGroupBegun
from distdoctor.testing import recording


def found(makers: list[list[int]], *, is_local: bool = False) -> list[Finding]:
    """What is said when these ranks have called new_group for ranks 0 and 2, then for ranks 0 and 1, and the job is over."""
    script = recording(ranks=4)
    for members, ranks in zip([(0, 1), (0, 2)][: len(makers)][::-1], makers, strict=True):
        script.note(NewGroupBegun(members, is_local, done_ns=1), ranks, site="train.py:15 main")
    return load().checks["DD119"].look(script.collective("barrier", site="train.py:20 main").finished())


def test_a_group_made_by_its_members_alone_is_a_warning_although_nobody_has_waited() -> None:
    (finding,) = found([[0, 1, 2, 3], [0, 1]])

    assert finding.title.startswith("called new_group for ranks 0,1 (number 2) without ranks 2-3")
    assert (finding.ranks, finding.severity, finding.confidence) == ((0, 1), WARNING, LIKELY)
    assert finding.place.short == "train.py:15"


@pytest.mark.parametrize("is_local", [False, True])
def test_groups_that_all_make_or_that_are_local_are_no_illness(is_local: bool) -> None:
    assert found([[0, 1] if is_local else [0, 1, 2, 3]], is_local=is_local) == []
