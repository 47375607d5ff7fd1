"""A line of the user's source, as a rank saw it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from distdoctor.recording.trace.layout import SITE_SEPARATOR, whole_number


@dataclass(frozen=True)
class SourceLine:
    """`path` is absolute as the rank saw it; the empty path means unknown."""

    path: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}" if self.path else "unknown line"

    def __bool__(self) -> bool:
        return bool(self.path)

    @classmethod
    def parse(cls, text: str) -> SourceLine:
        """From the text of a trace; anything else is an unknown line."""
        return _parsed(text)


@lru_cache(maxsize=1 << 16)  # ranks run the same lines again and again
def _parsed(text: str) -> SourceLine:
    parts = text.split(SITE_SEPARATOR)
    number = whole_number(parts[1]) if len(parts) == 3 else None
    return SourceLine() if number is None else SourceLine(parts[0], number, parts[2])
