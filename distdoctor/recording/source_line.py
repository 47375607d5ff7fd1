"""A line of the user's source, as a rank saw it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from distdoctor.recording.trace.layout import SITE_SEPARATOR, whole_number

# What the probe adds to the name of the file of a wrapper of its own that stands before a function of torch's: neither Python's
# warnings nor a reader of stacks counts it as a frame.
PASSED_OVER = " (like importlib._bootstrap)"


@dataclass(frozen=True)
class SourceLine:
    """`path` is absolute as the rank saw it; the empty path means unknown."""

    path: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        return f"{numbered(self.path, self.line)} {self.function}" if self.path else "unknown line"

    @property
    def short(self) -> str:
        """`train.py:41`, as prose mentions it; `In [3], line 4` in a notebook."""
        return numbered(self.path.rpartition("/")[2], self.line)

    def __bool__(self) -> bool:
        return bool(self.path)

    @property
    def walks(self) -> bool:
        """Whether it is one of `check-data --loader`, which reads a job's loaders in the place of the job."""
        return self.path.endswith("distdoctor/workloads/walk_loaders.py")

    @classmethod
    def parse(cls, text: str) -> SourceLine:
        """From the text of a trace; anything else is an unknown line."""
        return _parsed(text)


def cell_path(number: int) -> str:
    """The path of a cell of a notebook: what stands beside it there."""
    return f"In [{number}]"


def numbered(path: str, line: int) -> str:
    """`train.py:41`, and `In [3], line 4` in a notebook."""
    return f"{path}, line {line}" if path.startswith("In [") else f"{path}:{line}"


@lru_cache(maxsize=1 << 16)  # ranks run the same lines again and again
def _parsed(text: str) -> SourceLine:
    parts = text.split(SITE_SEPARATOR)
    number = whole_number(parts[1]) if len(parts) == 3 else None
    return SourceLine() if number is None else SourceLine(parts[0], number, parts[2])
