"""What is written down where collectives are issued while an exception is being handled: little, bounded, and in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distdoctor.probe.collectives.held_errors import MOST_LINES, HeldErrors
from distdoctor.probe.context import Rank
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import ErrorHeldBack, ProbeTrouble
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run


class Wordy(Exception):
    def __str__(self) -> str:
        raise AssertionError("the host's own code is not asked")


class Held:
    def __init__(self, folder: Path) -> None:
        self.folder, self.trace = folder, TraceWriter(str(folder), 0, 1, 0, 0, ())
        self.errors = HeldErrors(Rank(str(folder), ProbeSettings()), self.trace)

    def issue(self, error: BaseException, site: int, call: int) -> None:
        try:
            raise error
        except BaseException as caught:
            self.errors.note(caught, site, call)

    def noted(self, kind: Any = ErrorHeldBack) -> list[Any]:
        return list(read_run(self.folder).ranks[0].noted(kind))


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


def test_of_a_line_the_newest_call_is_known_and_how_many_the_error_has_seen(held: Held) -> None:
    error = KeyError("phone")
    for call in (4, 5, 6):
        held.issue(error, 1, call)
    (one,) = held.noted()
    assert (one.error, one.call, one.calls) == ("KeyError: 'phone'", 6, 3)
    assert one.site.path == __file__
    held.issue(ValueError("another"), 1, 7)
    assert [(one.error, one.call, one.calls) for one in held.noted()] == [("ValueError: another", 7, 1)]


@pytest.mark.parametrize("error", [Wordy("text"), ValueError(object()), ValueError()])
def test_the_hosts_own_objects_are_not_asked_for_words(held: Held, error: Exception) -> None:
    held.issue(error, 1, 1)
    (one,) = held.noted()
    assert one.error == type(error).__name__
    assert held.noted(ProbeTrouble) == []


def test_secrets_are_left_out(held: Held) -> None:
    held.issue(OSError("https://me:hunter2@host/data is gone"), 1, 1)
    (one,) = held.noted()
    assert "hunter2" not in one.error


def test_lines_without_end_fill_nothing(held: Held) -> None:
    for number in range(MOST_LINES + 20):
        held.issue(ValueError("no"), number, number)
    assert len(held.noted()) == MOST_LINES
