"""What a job is to be started with, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.probe_settings import ProbeSettings


@dataclass(frozen=True)
class Launch:
    """What to start: a script with options for torch's own agent, or `command`, any other launcher's command line."""

    argv: tuple[str, ...]
    options: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    strategy: str = ""


@dataclass(frozen=True)
class RunOptions:
    """How to go about it. `on_hang` is report, abort or wait; `probe` says what is recorded."""

    folder: Path
    on_hang: str = "report"
    hang_after: float | None = None  # seconds after which a standstill is a hang though nothing proves it; None: never
    probe: ProbeSettings = ProbeSettings()  # noqa: RUF009 - frozen
    ignored: frozenset[str] = frozenset()
    tell: Callable[[Finding, Diagnosis], None] = lambda finding, diagnosis: None
    notice: Callable[[str], None] = lambda words: None
    closer: Callable[[], Recording | None] | None = None  # a recording with the stacks of all ranks, while they run
    stop_on: frozenset[str] = frozenset()  # codes of findings that end the job once they are certain
    lines: Callable[[], Mapping[int, SourceLine]] = dict  # the user's line at which each rank is, while they run
    hosts: int = 0  # how many launchers the job has, one a host or one a task of a step; 0: not known
    task: int = (
        -1
    )  # of so many launchers that a scheduler started; -1: none did. The first looks at all ranks while they run
    leave: Callable[[Outcome], None] | None = None  # report and end this process: torch's agent does not come back
    afterwards: Callable[[], None] = lambda: None  # called when every rank has ended, before the recording is read


@dataclass(frozen=True)
class Outcome:
    """What came of it. `interrupted` is the signal that ended the job from outside, on any host, 0 for none. `trouble`: what
    ended torch's agent itself, "" where it came back in order."""

    recording: Recording
    diagnosis: Diagnosis
    hung: bool
    interrupted: int
    trouble: str = ""
    withdrawn: tuple[tuple[Finding, float], ...] = ()  # said and taken back, with the seconds that it had stood
