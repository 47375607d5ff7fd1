"""A worker that waits for a lock is shown with the line that makes the lock."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.testing.stacks import FETCH, LOADER, WORKER, frame, in_collective, looked_at, process, rank, torch_frame

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
SOURCE = """\
class Counters:
    def __init__(self):
        self._lock = threading.Lock()

    def bump(self):
        with self._lock:
            self.value += 1
"""


def test_the_line_that_makes_the_lock_is_shown() -> None:
    asleep = process(
        frame("data.py:6 bump"), torch_frame("fetch", FETCH), torch_frame("_worker_loop", WORKER), pid=2001, worker=0
    )
    waiting = rank(1, torch_frame("_next_data", LOADER), frame("train.py:30 main"), still=3.0, workers=(asleep,))
    [finding] = examine(looked_at(in_collective(0), waiting, sources={"data.py": SOURCE}), CHECKS).findings

    assert finding.code == "DD115"
    assert [(place.site.line, place.site.function) for place in finding.places][-1] == (3, "__init__")
