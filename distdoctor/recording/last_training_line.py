"""The last line about training at the end of a log, with the moment at which it was printed, where that can be trusted.

Lines say their time without a zone, and a copied file has the time of the copy. The file's own time and the last line's must be
the same but for a zone, which is a multiple of a quarter of an hour: of a copy they are so by chance only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import opened

TRAINING = re.compile(r"\b(?:loss|epochs?|tokens/s|samples/s|it/s|step)\b", re.IGNORECASE)
_END_BYTES = 1 << 20
_LONGEST = 4000
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_ZONE_NS = 900 * 10**9
_WRITTEN_WITHIN_NS = 5 * 10**9  # after a line is printed


@dataclass(frozen=True)
class TrainingLine:
    """`at_ns`: of the clock that the file system uses."""

    words: str
    at_ns: int


def last_training_line(path: Path) -> TrainingLine | None:
    """None: there is none, or nobody can tell when it was printed."""
    try:
        with opened(path) as file:
            size = file.seek(0, 2)
            written = path.stat().st_mtime_ns
            file.seek(max(0, size - _END_BYTES))
            lines = file.read(_END_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, UnreadableRecording):
        return None
    dated = [(line[:_LONGEST], moment) for line in lines if (moment := _moment_ns(line[:200]))]
    if not dated:
        return None
    zone = round((written - dated[-1][1]) / _ZONE_NS) * _ZONE_NS
    if not 0 <= written - dated[-1][1] - zone <= _WRITTEN_WITHIN_NS:
        return None
    found = next(((line, at) for line, at in reversed(dated) if TRAINING.search(line)), None)
    return TrainingLine(found[0][:200], found[1] + zone) if found is not None else None


def _moment_ns(line: str) -> int:
    found = _MOMENT.search(line)
    if found is None:
        return 0
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return int(moment.timestamp()) * 10**9 + int((found[3] or "0").ljust(9, "0"))
