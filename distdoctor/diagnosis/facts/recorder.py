"""What the recorders of the ranks noted about themselves: there is no stream in which they would not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import ProbeTrouble


@dataclass(frozen=True)
class RecorderTroubles:
    """The fact: by its words, each trouble, and the ranks that had it."""

    streams: ClassVar[frozenset[str]] = frozenset()
    ranks: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        found: dict[str, dict[int, None]] = {}
        for rank, log in recording.ranks.items():
            for trouble in log.noted(ProbeTrouble):
                found.setdefault(trouble.reason, {})[rank] = None
        return cls({what: tuple(ranks) for what, ranks in found.items()})
