"""The outcome of an examination: findings with the root cause first, and what could not be examined."""

from __future__ import annotations

from dataclasses import dataclass, field

from distdoctor.diagnosis.finding import Finding, Severity
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.recording.recording import Job


@dataclass(frozen=True)
class NotExamined:
    """A check that could not be made, and why. Never the same as healthy. `applies`: False where its question does not arise."""

    code: str
    slug: str
    reason: str
    applies: bool = True


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

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings that are this severe or worse."""
        return tuple(f for f in self.findings if (f.severity or Severity.NOTE) >= severity)

    @property
    def healthy(self) -> bool:
        return not self.findings and not self.left_open
