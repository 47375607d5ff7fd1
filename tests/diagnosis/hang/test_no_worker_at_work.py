"""A rank waits for a batch, and nobody is seen to make one: that it makes it itself is said only where it has no workers."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.stacks import FileWait
from distdoctor.testing.stacks import FETCH, LOADER, WORKER, frame, in_collective, looked_at, process, rank, torch_frame

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


@pytest.mark.parametrize("wait", [None, FileWait("open", "/tmp/feed", "FIFO")])
def test_a_rank_that_makes_its_batch_itself_is_told_what_it_waits_for_and_no_timeout_that_torch_refuses(
    wait: FileWait | None,
) -> None:
    read = frame("data.py:12 __getitem__")
    waiting = rank(1, read, torch_frame("_next_data", LOADER), frame("train.py:30 main"), still=30.0, waits_for=wait)

    (finding,) = [one for one in examine(looked_at(in_collective(0), waiting), CHECKS).findings if one.code == "DD115"]

    (cure,) = finding.prescriptions
    assert finding.title.endswith(
        "(num_workers=0): open() of the FIFO /tmp/feed waits for a process that opens its other end"
        if wait
        else "(num_workers=0)"
    )
    assert cure.change == (
        "start what opens the other end of /tmp/feed before data.py:12, or open it there with os.O_NONBLOCK"
        if wait
        else "bound the wait at data.py:12"
    )


TELEMETRY = """import {module}
class Telemetry:
    def __init__(self):
        self.lock = {module}.Lock()
    def count(self, key):
        with self.lock:
            self.counts[key] += 1
    def post(self):
        with self.lock:
            self.send(self.counts)
"""


@pytest.mark.parametrize("module", ["threading", "multiprocessing"])
def test_a_lock_that_a_worker_has_inherited_as_taken_is_told_with_who_takes_it_besides(module: str) -> None:
    frames = (frame("telemetry.py:6 count"), frame("data.py:12 __getitem__"), torch_frame("fetch", FETCH))
    stuck = process(*frames, torch_frame("_worker_loop", WORKER), pid=2001, worker=0, still=30.0)
    waiting = rank(1, torch_frame("_try_get_data", LOADER), frame("train.py:30 main"), still=30.0, workers=(stuck,))
    sources = {"telemetry.py": TELEMETRY.format(module=module)}
    job = looked_at(in_collective(0), waiting, sources=sources)

    (finding,) = [one for one in examine(job, CHECKS).findings if one.code == "DD115"]

    forked = module == "threading"
    assert finding.title.endswith("`self.lock` was taken when it was forked, and nobody frees the copy") is forked
    takers = [place.site.line for place in finding.places if place.role == "takes `self.lock` as well"]
    assert takers == ([9] if forked else [])
    assert ("forkserver" in finding.prescriptions[0].change) is forked
