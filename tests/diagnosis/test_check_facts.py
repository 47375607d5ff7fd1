"""What a check is given, and when it is not asked at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from click.testing import CliRunner
from sick import own

from distdoctor.cli.explain import explain
from distdoctor.diagnosis.check import Check, NotApplicable, check
from distdoctor.diagnosis.diagnosis import NotExamined
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import NOTE, Finding
from distdoctor.diagnosis.hang.in_logs import LogFacts
from distdoctor.diagnosis.memory.memory import Memory
from distdoctor.recording.recording import Job, Recording


@dataclass(frozen=True)
class Weather:
    streams: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def of(cls, recording: Recording) -> Self:
        raise NotApplicable("there is no window")


@check("DD990", "either", severity=NOTE)
def either(memory: Memory | None, weather: Weather | None) -> Iterator[Finding]:
    yield Finding("was asked", evidence={"memory": memory is not None, "weather": weather is not None})


@check("DD991", "indoors", severity=NOTE)
def indoors(log: LogFacts | None, weather: Weather | None) -> Iterator[Finding]:
    yield Finding("was asked")


@check("DD992", "recording-as-well", severity=NOTE)
def recording_as_well(recording: Recording, weather: Weather | None) -> Iterator[Finding]:
    yield Finding("was asked")


@check("DD993", "broken", severity=NOTE)
def broken(recording: Recording) -> Iterator[Finding]:
    yield from [Finding("never told")] if recording.ranks[7] else ()


def _looked(asked: Check, *streams: str) -> tuple[list[str], list[NotExamined]]:
    recording = Recording(job=Job(), ranks={}, streams=frozenset(streams))
    diagnosis = examine(recording, [asked])
    return [one.title for one in diagnosis.findings], list(diagnosis.not_examined)


def test_a_check_that_would_be_given_nothing_but_none_has_not_seen_anything() -> None:
    """That one question does not arise is no reason where the other could not be answered."""
    assert _looked(either) == ([], [NotExamined("DD990", "either", "not recorded: memory", applies=True)])


def test_where_no_question_of_a_check_arises_it_does_not_apply() -> None:
    found, (left_out,) = _looked(indoors)

    assert not found
    assert not left_out.applies
    assert left_out.reason == "there is no job log, nor an answer of NCCL's RAS; there is no window"


def test_a_check_that_also_reads_the_recording_itself_is_asked() -> None:
    assert [one.title for one in recording_as_well.look(Recording(job=Job(), ranks={}))] == ["was asked"]


def test_a_check_that_fails_is_not_examined_and_that_state_has_a_page() -> None:
    (told,) = examine(own("DD902"), [broken]).not_examined

    assert told == NotExamined("DD993", "broken", "the check failed: KeyError: 7", applies=True)
    for name in ("DD900", "not-examined"):
        page = CliRunner().invoke(explain, [name])
        assert page.exit_code == 0
        assert page.output.startswith("DD900 not-examined: ")
        assert "the check itself failed" in page.output
