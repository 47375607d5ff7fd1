"""The outcome of an examination: findings with the root cause first, and what could not be examined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.finding import Finding, Severity
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.recording.coverage import Coverage
from distdoctor.recording.recording import Job, Recording, Trouble

CHECK_FAILED = "the check failed"


@dataclass(frozen=True)
class NotExamined:
    """A check that could not be made, and why. Never the same as healthy. `applies`: False where its question does not arise."""

    code: str
    slug: str
    reason: str
    applies: bool = True

    @property
    def failed(self) -> bool:
        """Whether the check itself raised: what it would have said nobody knows."""
        return self.reason.startswith(CHECK_FAILED)


class FixOutcome(StrEnum):
    """What came of a fix that was tried. UNDECIDED: it ran, and not far enough to tell; NOT_TRIED: there was nothing to run."""

    VERIFIED = "verified"
    NOT_VERIFIED = "not verified"
    UNDECIDED = "undecided"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class TriedFix:
    """The job run again, in a copy, with the first patch of its findings. `words`: what came of it, in one sentence; `findings`:
    what the second run ended with where that is why; `steps`: how far every rank came in it."""

    outcome: FixOutcome
    words: str
    code: str = ""
    findings: tuple[Finding, ...] = ()
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Diagnosis:
    """What the checks said about one recording. `findings[0]` is the root cause. `remedies` describes the slugs that appear."""

    job: Job
    findings: tuple[Finding, ...] = ()
    not_examined: tuple[NotExamined, ...] = ()
    examined: tuple[str, ...] = ()
    suppressed: tuple[Finding, ...] = ()
    remedies: dict[str, Remedy] = field(default_factory=dict)
    world_size: int = 0
    left_open: tuple[
        str, ...
    ] = ()  # what the recording does not answer: without findings the job is then unknown, not healthy
    coverage: Coverage | None = None  # None: made by hand, of no recording
    troubles: tuple[Trouble, ...] = ()
    withdrawn: tuple[tuple[Finding, float], ...] = ()  # said while it ran and taken back, after so many seconds
    hung: bool = False  # while it ran, it was found to hang
    ended_by_distdoctor: bool = False  # its ranks were ended because of what was found: their ends are no cause
    tried: TriedFix | None = None  # where somebody asked for it (`run --try-fix`)
    judged_by: str = ""  # the host whose launcher judged for all, where that was another one
    # What was examined, for the tables and pictures of reports. None: made by hand.
    recording: Recording | None = field(default=None, repr=False, compare=False)
    checks: Mapping[str, Check] = field(default_factory=dict, repr=False, compare=False)  # that were asked, by code

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings that are this severe or worse."""
        return tuple(f for f in self.findings if (f.severity or Severity.NOTE) >= severity)

    @property
    def is_whole(self) -> bool:
        """The whole job was seen, so that no rank that left nothing can overturn what is said of the others."""
        return self.coverage is None or self.coverage.complete

    @property
    def stalled(self) -> tuple[Finding, ...]:
        """The errors because of which ranks wait."""
        return tuple(finding for finding in self.at_least(Severity.ERROR) if finding.stalls)

    @property
    def could_not_look(self) -> tuple[NotExamined, ...]:
        """The checks whose question arises and whose answer the recording does not hold."""
        return tuple(one for one in self.not_examined if one.applies)

    @property
    def healthy(self) -> bool:
        """Every check whose question arises was made, on all of the job, none found anything, and nothing is left open."""
        looked = bool(self.examined) and self.is_whole and not self.could_not_look
        return looked and not self.findings and not self.left_open
