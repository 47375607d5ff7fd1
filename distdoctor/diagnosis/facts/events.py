"""The rare things that ranks noted while they ran, for checks that need nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.events import Kind


@dataclass(frozen=True)
class RankEvents:
    """The fact: every rank's events."""

    streams: ClassVar[frozenset[str]] = frozenset({"progress"})
    logs: Mapping[int, RankTrace]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        return cls(recording.ranks)

    def events(self, kind: type[Kind]) -> Iterator[tuple[int, Kind]]:
        """(rank, event) of one kind, rank by rank; `at_ns` is on the wall clock."""
        for rank, log in self.logs.items():
            for event in log.noted(kind):
                yield rank, replace(event, at_ns=event.at_ns + log.monotonic_to_wall_ns)
