"""Threads that issue calls on one group at the same time: the ranks pair different ones, whatever was written down first."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording

CHECKS = PLUGINS.checks
SECOND = 1_000_000_000


def stuck(*, thread: int, overlap: bool, native_thread: int = 0) -> Recording:
    """Two ranks whose writer gathers while the main thread trains; then they stand in the same gathering for a minute."""
    script = recording(ranks=2)
    for _ in range(4):
        script.collective("all_reduce", [64], site="train.py:81 main").compute(0.2).step()
    film = script.collective("barrier", site="train.py:82 main").film()
    for runner in film.runners.values():
        log = runner.log
        now = log.now
        over = now + SECOND // (10 if overlap else 1000)
        log.call("all_gather", [4], site="train.py:41 write", thread=thread, at_ns=now, returned_ns=over)
        log.call(
            "all_reduce", [64], site="train.py:81 main", thread=native_thread, native=True, at_ns=now + SECOND // 20
        )
        log.call("all_gather", [4], site="train.py:41 write", thread=thread, at_ns=now + SECOND // 5, returned_ns=0)
    last = max(int(runner.log.last_call["entered_ns"]) for runner in film.runners.values())
    found: Recording = film.read(last + 60 * SECOND)
    return found


def told(found: Recording) -> list[Finding]:
    return [one for one in examine(found, CHECKS.values()).findings if one.severity is ERROR]


def test_a_thread_that_shares_the_group_of_the_training_is_named_with_both_lines() -> None:
    (finding,) = told(stuck(thread=1, overlap=True))

    assert (finding.code, finding.confidence, finding.ranks) == ("DD107", LIKELY, (0, 1))
    assert finding.place is not None
    assert finding.place.line == 41
    assert {place.site.line for place in finding.places} == {41, 81}
    assert "group=" in finding.prescriptions[0].change


@pytest.mark.parametrize(
    ("thread", "overlap", "native_thread"),
    [
        pytest.param(0, True, 0, id="one thread for all"),
        pytest.param(1, False, 0, id="threads that take turns"),
        pytest.param(0, True, 1, id="autograd's own thread"),
    ],
)
def test_calls_that_are_ordered_are_not_blamed(thread: int, overlap: bool, native_thread: int) -> None:
    found = told(stuck(thread=thread, overlap=overlap, native_thread=native_thread))

    assert [one.code for one in found] == ["DD122"]
