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
