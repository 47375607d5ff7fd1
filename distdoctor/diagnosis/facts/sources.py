"""The user's source files, for checks that show a line of them or edit one: no stream has to be recorded for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.recording.recording import Recording


@dataclass(frozen=True)
class Sources:
    """`texts`: path -> text, of the files that are still what the ranks ran."""

    streams: ClassVar[frozenset[str]] = frozenset()
    texts: Mapping[str, str]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        return cls(recording.sources)
