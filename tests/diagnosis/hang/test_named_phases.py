"""A rank that stands in a phase that the program has named has a minute, as it is said in docs/python.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.recording.trace.events import LongPhase
from distdoctor.testing.rank_trace import TraceBuilder
from distdoctor.testing.stacks import frame, in_collective, looked_at, process, rank


@pytest.mark.parametrize(
    ("phase", "still", "stuck"),
    [
        (LongPhase("evaluation", named=True), 30.0, False),
        (LongPhase("evaluation", named=True), 61.0, True),
        (LongPhase("evaluation", named=True, ended_ns=1), 30.0, True),
        (LongPhase("evaluation"), 30.0, True),
    ],
    ids=["in it", "for more than a minute", "over", "by its own signs"],
)
def test_a_rank_that_stands_in_a_named_phase_has_a_minute(phase: LongPhase, still: float, stuck: bool) -> None:
    standing = replace(rank(1), process=process(frame("train.py:2 save"), pid=11, still=still))
    job = looked_at(in_collective(0), standing, sources={"train.py": "def save():\n    time.sleep(40)\n"})
    log = TraceBuilder(1, world_size=2)
    log.note(phase)
    seen = Stall.of(job)
    stall = replace(seen, recording=replace(job, ranks={1: log.build()}))

    assert stall.is_stuck(stall.standings[1]) == stuck
