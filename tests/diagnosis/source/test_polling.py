"""What a rank that sleeps between two looks waits for is read off the loop."""

from __future__ import annotations

from textwrap import dedent

import pytest

from distdoctor.diagnosis.source.polling import polled_at
from distdoctor.recording.recording import SourceLine

LOCK = """\
    def acquire(path):
        while True:
            try:
                os.close(os.open(path, os.O_EXCL))
                return
            except FileExistsError:
                time.sleep(0.1)
    """
FILE = """\
    def ready(path):
        while not path.exists():
            time.sleep(1)
    """
BREAKS = """\
    while True:
        if done.is_set():
            break
        time.sleep(1)
    """
PLAIN = """\
    def train():
        while not over:
            step()
    def pause():
        time.sleep(1)
    for _ in range(3):
        time.sleep(2)
    """


@pytest.mark.parametrize(
    ("source", "line", "asked", "goes_on"),
    [
        (LOCK, 7, 4, "`os.open(path, os.O_EXCL)` still raises FileExistsError"),
        (FILE, 3, 2, "`not path.exists()` still holds"),
        (BREAKS, 4, 2, "`done.is_set()` does not hold"),
    ],
)
def test_the_condition_of_the_loop_is_named(source: str, line: int, asked: int, goes_on: str) -> None:
    polled = polled_at({"train.py": dedent(source)}, SourceLine("train.py", line, "f"))

    assert polled is not None
    assert (polled.line, polled.goes_on) == (asked, goes_on)


def test_a_pause_in_a_loop_that_trains_waits_for_nothing() -> None:
    trains = BREAKS.replace("time.sleep(1)", "loss(batch).backward()\n        time.sleep(3600)")

    assert polled_at({"train.py": dedent(trains)}, SourceLine("train.py", 5, "<module>")) is None


@pytest.mark.parametrize("line", [5, 7])
def test_a_sleep_in_no_such_loop_waits_for_nothing(line: int) -> None:
    assert polled_at({"train.py": dedent(PLAIN)}, SourceLine("train.py", line, "f")) is None
    assert polled_at({}, SourceLine("train.py", line, "f")) is None
