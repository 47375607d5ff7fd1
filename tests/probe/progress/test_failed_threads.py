"""Exceptions that end threads of the program are on record, and shown as before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distdoctor.probe import wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.progress.stream import watch_threads
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import ThreadFailed
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the hook that was there before has shown."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_type.__name__))
    rank = Rank(str(tmp_path), ProbeSettings())
    rank.trace = TraceWriter(str(tmp_path), 0, 1, 0, 0, ())
    watch_threads(rank)
    yield found
    wrappers.remove_all()


def fail(error: BaseException, name: str = "reader") -> None:
    def run() -> None:
        raise error

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()


def noted(folder: Path) -> list[ThreadFailed]:
    return list(read_run(folder).ranks[0].noted(ThreadFailed))


def test_the_error_its_thread_and_line_are_known(shown: list[str], tmp_path: Path) -> None:
    fail(ValueError("n/a"))
    (one,) = noted(tmp_path)
    assert (one.error, one.thread, one.site.path, one.site.function) == ("ValueError: n/a", "reader", __file__, "run")
    assert shown == ["ValueError"]


def test_a_thread_that_leaves_by_itself_has_not_failed(shown: list[str], tmp_path: Path) -> None:
    fail(SystemExit(3))
    assert noted(tmp_path) == []


def test_threads_that_fail_without_end_fill_nothing(shown: list[str], tmp_path: Path) -> None:
    for number in range(40):
        fail(ValueError(str(number)))
    assert len(noted(tmp_path)) == 16
    assert len(shown) == 40


class Wordy(Exception):
    def __str__(self) -> str:
        raise AssertionError("the host's own code is not asked")


@pytest.mark.parametrize(("error", "words"), [(TypeError("no float"), "TypeError: no float"), (Wordy("x"), "Wordy")])
def test_an_error_that_a_future_keeps_is_known_and_still_handed_on(
    shown: list[str], tmp_path: Path, error: Exception, words: str
) -> None:
    def run() -> None:
        raise error

    with ThreadPoolExecutor(1, "writer") as pool:
        task = pool.submit(run)
    assert task.exception() is error
    (one,) = noted(tmp_path)
    assert (one.error, one.kept, one.site.function) == (words, True, "run")
    assert one.thread.startswith("writer")
    assert shown == []
