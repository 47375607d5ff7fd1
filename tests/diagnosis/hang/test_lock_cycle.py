"""Two threads of a rank that take two locks in two orders: both lines are named, however the `with` is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.stacks import ThreadStack
from distdoctor.testing.stacks import frame, in_collective, looked_at, rank

HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]
SOURCE = """\
def write():
    with b:
        with a{}
def main():
    with a:
        with b{}
"""


@pytest.mark.parametrize(("body", "line"), [(": pass", 6), (":\n            pass", 7)])
def test_a_cycle_of_two_locks_is_told_with_the_order_of_each_thread(body: str, line: int) -> None:
    source = SOURCE.format(body, body)
    held_by_writer = ThreadStack(7, (frame("train.py:3 write"),), "writer")
    standing = rank(1, frame(f"train.py:{line} main"))
    assert standing.process is not None
    both = (*standing.process.threads, held_by_writer)
    stuck = replace(standing, process=replace(standing.process, threads=both))

    job = looked_at(in_collective(0), stuck, sources={"train.py": source})
    (finding,) = examine(job, HANGS, PLUGINS.remedies, live=True).findings

    assert finding.title.endswith(
        "its threads wait for each other: it holds `a` and waits for `b`, which thread writer holds while it waits for `a`"
    )
    assert finding.prescriptions[0].change == (
        f"take `a` and `b` in one order in all threads: train.py:{line - 1} takes `a` first, train.py:2 takes `b` first"
    )


TWICE = """\
class Recorder:
    def __init__(self):
        self.lock = threading.{kind}()

    def record(self, row):
        with self.lock:
            self.rows.append(row)
            self.dump()

    def dump(self):
        with self.lock:
            return list(self.rows)


class Other:
    def flush(self):
        with self.lock:
            self.recorder.dump()
"""


@pytest.mark.parametrize(
    ("kind", "above", "told"),
    [("Lock", 8, True), ("RLock", 8, False), ("Lock", 18, False)],
    ids=["not reentrant", "reentrant", "of another object"],
)
def test_a_lock_that_its_own_thread_has_taken_above_is_told_where_it_was_taken_first(
    kind: str, above: int, told: bool
) -> None:
    stuck = rank(1, frame("train.py:11 dump"), frame(f"train.py:{above} record"), frame("train.py:40 main"))

    job = looked_at(in_collective(0), stuck, sources={"train.py": TWICE.format(kind=kind)})
    (finding,) = examine(job, HANGS, PLUGINS.remedies, live=True).findings

    assert (finding.code, finding.ranks, finding.place.line) == ("DD116", (1,), 6 if told else 11)
    assert ("it waits for itself" in finding.title) is told
    if told:
        assert finding.prescriptions[0].change == (
            "call what is at train.py:11 after the `with` of train.py:6, or make `self.lock` a threading.RLock (train.py:3)"
        )
