"""A rank that the others wait for is told by the finding that knows what it does, and by a note where none does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.stacks import STOPPED, RankStacks
from distdoctor.testing import recording
from distdoctor.testing.stacks import FETCH, LOADER, WORKER, frame, in_collective, looked_at, process, rank, torch_frame

CHECKS = list(PLUGINS.checks.values())


def _at_work() -> RankStacks:
    worker = process(
        frame("data.py:12 __getitem__"), torch_frame("fetch", FETCH), torch_frame("_worker_loop", WORKER),
        pid=2001, worker=0, still=0.0, cpu_share=0.9,
    )  # fmt: skip
    return rank(0, torch_frame("_next_data", LOADER), frame("train.py:30 main"), still=30.0, workers=(worker,))


@pytest.mark.parametrize(
    ("seen", "codes"),
    [
        (rank(0, frame("train.py:57 save"), still=30.0, state=STOPPED), ["DD117"]),
        (_at_work(), ["DD123"]),
    ],
)
def test_who_is_waited_for_is_told_once(seen: RankStacks, codes: list[str]) -> None:
    script = recording(ranks=2)
    for _ in range(5):
        script.collective("all_reduce", [8], site="train.py:41 train").step()
    recorded = script.stays(0).collective("all_reduce", site="train.py:57 save").live(silent_for=30)
    stacks = looked_at(seen, in_collective(1, site="train.py:57 save")).stacks

    findings = examine(replace(recorded, stacks=stacks), CHECKS).findings

    assert [finding.code for finding in findings] == codes
    assert findings[0].ranks == (0,)
