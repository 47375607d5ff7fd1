"""A rank waits for a batch, and nobody is seen to make one: that it makes it itself is said only where it has no workers."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.testing.stacks import LOADER, WORKER, frame, in_collective, looked_at, process, rank, torch_frame

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]


@pytest.mark.parametrize(
    ("asks", "workers", "words"),
    [
        ("_next_data", 0, "which it makes itself (num_workers=0)"),
        ("_try_get_data", 0, "and no worker of its loader is to be seen"),
        ("_try_get_data", 1, "and none of its 1 worker processes is making one"),
    ],
)
def test_who_makes_the_batch_is_said_as_far_as_it_is_seen(asks: str, workers: int, words: str) -> None:
    idle = process(frame("/usr/lib/python3.11/queue.py:1 get"), torch_frame("_worker_loop", WORKER), pid=2002, worker=0)
    waiting = rank(1, torch_frame(asks, LOADER), frame("train.py:30 main"), still=30.0, workers=(idle,) * workers)

    (finding,) = [one for one in examine(looked_at(in_collective(0), waiting), CHECKS).findings if one.code == "DD115"]

    assert finding.title.endswith(words)
