"""The order in which findings are told."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Confidence, Finding, Severity
from distdoctor.recording.recording import Recording
from distdoctor.testing.gradients import trained_job

FOUND: list[tuple[Severity, Confidence, int]] = []


@check("DD999", "of-all-kinds", severity=WARNING)
def of_all_kinds(recording: Recording) -> Iterator[Finding]:
    for severity, confidence, at_ns in FOUND:
        yield Finding(title=f"{confidence} {at_ns}", severity=severity, confidence=confidence, at_ns=at_ns)


def order(severity: Severity, *found: tuple[Confidence, int]) -> list[str]:
    FOUND[:] = [(severity, *one) for one in found]
    return [one.title for one in examine(trained_job(2).initial().step().recording(), [of_all_kinds]).findings]


def test_a_warning_stands_behind_surer_ones_however_early() -> None:
    found = order(WARNING, (POSSIBLE, 1), (CERTAIN, 5), (LIKELY, 3), (CERTAIN, 4))

    assert found == ["certain 4", "certain 5", "likely 3", "possible 1"]


def test_of_errors_the_earliest_is_the_cause() -> None:
    assert order(ERROR, (CERTAIN, 5), (POSSIBLE, 1)) == ["possible 1", "certain 5"]


@check("DD998", "what-may-follow", severity=NOTE, symptom=True)
def what_may_follow(recording: Recording) -> Iterator[Finding]:
    yield Finding(title="a note that may follow", ranks=(0,), confidence=LIKELY)


def test_a_note_on_what_may_follow_from_anything_stands_behind_notes_that_are_less_sure() -> None:
    FOUND[:] = [(NOTE, POSSIBLE, 1)]
    found = examine(trained_job(2).initial().step().recording(), [what_may_follow, of_all_kinds]).findings

    assert [one.code for one in found] == ["DD999", "DD998"]
