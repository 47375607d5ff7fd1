"""Exchanges that one rank has made less often than all others are found by the calls that led to them, and by their numbers."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.hang.call_chains import sent_otherwise
from distdoctor.recording.recording import Job, Recording
from distdoctor.testing.rank_trace import TraceBuilder

PATH = "/job/grid.py"
LINE = (PATH, (22, 22, 12, 40), "exchange")
SUBSTEP = [LINE, (PATH, (41, 41, 16, 44), "advance"), (PATH, (60, 60, 8, 30), "main")]
BESIDE = [LINE, (PATH, (61, 61, 8, 30), "main")]


def found(*substeps: int) -> list[tuple[str, int]]:
    """The line by which rank 1 exchanged otherwise, and its callers. Each rank made so many substeps, and ten other exchanges."""
    logs = {}
    for rank, times in enumerate(substeps):
        log = TraceBuilder(rank, world_size=len(substeps))
        for chain in [SUBSTEP] * times + [BESIDE] * 10:
            log.call("send", [4], root=(rank + 1) % len(substeps), site="grid.py:22 exchange", chain=chain)
        logs[rank] = log.build()
    facts = Collectives.of(Recording(Job(world_size=len(substeps)), logs))
    return [(site.function, site.line) for site in sent_otherwise(facts, 1)]


def test_a_line_with_its_callers_is_named() -> None:
    assert found(20, 19, 20) == [("exchange", 22), ("advance", 41), ("main", 60)]
    assert found(20, 21, 20, 20) == [("exchange", 22), ("advance", 41), ("main", 60)]


@pytest.mark.parametrize("substeps", [(20, 20, 20), (20, 19, 18), (20, 19)], ids=["even", "all differ", "two ranks"])
def test_where_the_others_do_not_agree_or_nothing_differs_nothing_is(substeps: tuple[int, ...]) -> None:
    assert found(*substeps) == []
