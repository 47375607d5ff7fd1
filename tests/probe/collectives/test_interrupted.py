"""A signal handler of the user's may issue collectives in the middle of our own recording of one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path

import pytest
from test_collectives import launch

from distdoctor.probe.collectives.stream import ProbedGroup
from distdoctor.probe.writer import TraceWriter, file_name
from distdoctor.recording.trace.events import ProbeTrouble
from distdoctor.recording.trace.layout import CallFlag, extend
from distdoctor.recording.trace.reader import read_trace
from distdoctor.recording.trace.run_folder import read_run

SCRIPT = Path(__file__).parent / "interrupted.py"


@contextmanager
def signals_every(seconds: float, handler: object) -> Iterator[None]:
    """Call `handler` in the main thread that often, and not before it has run for as long as the handler took."""
    over = False

    def handle(*_: object) -> None:
        began = time.perf_counter()
        handler()  # type: ignore[operator]
        if (
            not over
        ):  # the last signal may be handled when the timer has been stopped: pytest-timeout's handler comes next
            signal.setitimer(signal.ITIMER_REAL, max(seconds, time.perf_counter() - began))

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_texts_of_a_handler_and_of_another_thread_stand_beside_those_that_they_interrupt(tmp_path: Path) -> None:
    trace = TraceWriter(str(tmp_path), 0, 2, 0, 0)
    written: dict[int, str] = {}
    numbers, over = count(), threading.Event()

    def write() -> None:
        text = f"{next(numbers)} " + "x" * 20
        written[trace.texts.id(text)] = text

    def write_on() -> None:
        while not over.is_set():
            write()

    thread = threading.Thread(target=write_on)
    with signals_every(0.00005, write):
        thread.start()
        while len(written) < 5000:
            write()
    over.set()
    thread.join()

    assert 0 not in written
    read = read_trace(tmp_path / file_name(0, 0)).texts
    assert {number: read[number] for number in written} == written


def test_calls_of_a_handler_have_numbers_and_digests_of_their_own(tmp_path: Path) -> None:
    trace = TraceWriter(str(tmp_path), 0, 2, 0, 0)
    group, taken, signatures = ProbedGroup(trace, "0", (0, 1), "gloo"), [], count(1)

    def issue() -> None:
        signature = next(signatures)
        taken.append((*group.extend(signature, signature, 0), signature))

    with signals_every(0.00005, issue):
        for _ in range(20_000):
            issue()

    taken.sort()
    assert [number for number, *_ in taken] == list(range(1, len(taken) + 1))
    assert len(taken) > 20_000
    for (_, before, _, _), (_, prefix, _, signature) in pairwise(taken):
        assert prefix == extend(before, signature)
    stored = read_trace(tmp_path / file_name(0, 0)).rows["groups"][0]
    assert (stored["count"], stored["prefix"]) == (len(taken), taken[-1][1])


@pytest.mark.job
def test_a_job_whose_handlers_issue_collectives_ends_and_every_call_is_recorded_whole(tmp_path: Path) -> None:
    done = launch(SCRIPT, tmp_path, ranks=2)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("handled") == 2
    for log in read_run(tmp_path).ranks.values():
        assert not log.has_noted(ProbeTrouble)
        calls = [log.call(row) for row in log.calls]
        assert len(calls) > 601
        for row, call in zip(log.calls, calls, strict=True):
            assert row["returned_ns"], f"{call} has come back"
            assert call.op.word == "barrier" or call.site.path == str(SCRIPT)
            waited = bool(row["flags"] & CallFlag.ASYNC)
            assert bool(row["waited_ns"]) == waited
