"""How long Python's collector stops a rank is added up by step, with the line where it struck hardest."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest

from distdoctor.probe.context import Rank
from distdoctor.probe.progress import garbage
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import GarbageCollected
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    found = Rank(str(tmp_path), ProbeSettings(frozenset({"progress"})))
    found.trace = TraceWriter(str(tmp_path), 0, 1, 0, 0)
    return found


def test_collections_of_garbage_are_added_up_and_the_line_of_the_longest_is_told(rank: Rank) -> None:
    heap = [[number] for number in range(600_000)]
    rank.step = garbage.WARM_UP + 1
    collector = garbage.install(rank)
    try:
        began = time.monotonic_ns()
        for _ in range(3):
            gc.collect()  # walks through the heap
        took = time.monotonic_ns() - began
    finally:
        gc.callbacks.remove(collector.callback)
    collector.settle()
    collector.stepped()

    assert 0.5 * took < rank.collected_ns <= took
    (noted,) = read_run(Path(rank.folder)).ranks[0].noted(GarbageCollected)
    assert noted.count == 3
    assert noted.longest <= noted.nanoseconds <= took
    assert "# walks" in Path(__file__).read_text("utf-8").splitlines()[noted.site.line - 1]
    assert heap


def test_what_a_forked_helper_collects_is_not_kept(rank: Rank) -> None:
    collector = garbage.install(rank)
    pid = os.fork()
    if not pid:
        os._exit(int(collector.callback in gc.callbacks))

    gc.callbacks.remove(collector.callback)

    assert os.waitpid(pid, 0)[1] == 0
