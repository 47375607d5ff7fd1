"""Read the user's source files that a recording mentions, for guards, suppressions and the lines shown in reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from distdoctor.recording.recording import Recording, SourceLine

LARGEST_BYTES = 1 << 20  # a source file beyond that is generated; nobody writes a suppression there


def with_sources(recording: Recording) -> Recording:
    """The recording with the text of each user file that its sites mention, as far as the files are still there."""
    from dataclasses import replace

    found = dict(recording.sources)
    for path in sorted(_mentioned(recording) - found.keys()):
        text = _read(Path(path))
        if text is not None:
            found[path] = text
    return replace(recording, sources=found)


def _mentioned(recording: Recording) -> set[str]:
    return {site.path for log in recording.ranks.values() for text in log.texts if (site := SourceLine.parse(text))}


def _read(path: Path) -> str | None:
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > LARGEST_BYTES:
            return None
        return path.read_text("utf-8", "replace")
    except OSError:
        return None


def line_of(sources: Mapping[str, str], path: str, number: int) -> str:
    """One line of a file, "" when it is not there. Lines count from 1."""
    lines = sources.get(path, "").splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""
