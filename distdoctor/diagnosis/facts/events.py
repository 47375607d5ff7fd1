"""The rare things that ranks noted while they ran, for checks that need nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.layout import EventKind


@dataclass(frozen=True)
class RankEvents:
    """The fact: every rank's events."""

    streams: ClassVar[frozenset[str]] = frozenset({"progress"})
    logs: Mapping[int, RankTrace]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        return cls(recording.ranks)

    def events(self, kind: EventKind) -> Iterator[tuple[int, RankTrace, Any]]:
        """(rank, its log, row of `layout.EVENT`) of one kind, rank by rank."""
        for rank, log in self.logs.items():
            for row in log.events[log.events["kind"] == kind]:
                yield rank, log, row
