"""What `distdoctor preflight` found, as a fact that checks ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.recording.preflight import CheckedMachine, Preflight, TrialRank
from distdoctor.recording.recording import Recording


@dataclass(frozen=True)
class PreflightTrial:
    """The machine, and the empty ranks that met on it."""

    streams: ClassVar[frozenset[str]] = frozenset()
    found: Preflight

    @classmethod
    def of(cls, recording: Recording) -> Self:
        if recording.preflight is None:
            raise NotApplicable("only distdoctor preflight asks the machine")
        return cls(recording.preflight)

    @property
    def machine(self) -> CheckedMachine:
        return self.found.machine

    def met(self) -> dict[int, TrialRank]:
        """The ranks that came back from the group."""
        return {rank: one for rank, one in self.found.ranks.items() if not one.trouble}
