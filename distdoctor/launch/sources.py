"""Read the user's source files that a recording mentions, for guards, suppressions and the lines shown in reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from distdoctor.recording.recording import Recording, SourceLine, Trouble
from distdoctor.recording.source_texts import read_sources


def with_sources(recording: Recording) -> Recording:
    """The recording with the text of each user file that its sites mention, as far as the files are still what the ranks ran."""
    found = read_sources(_mentioned(recording) - recording.sources.keys(), recording.ranks)
    changed = tuple(Trouble(words) for words in found.changed)
    texts = {**recording.sources, **found.texts}
    return replace(recording, sources=texts, troubles=tuple(dict.fromkeys((*recording.troubles, *changed))))


def _mentioned(recording: Recording) -> set[str]:
    return {site.path for log in recording.ranks.values() for text in log.texts if (site := SourceLine.parse(text))}


def line_of(sources: Mapping[str, str], path: str, number: int) -> str:
    """One line of a file, "" when it is not there. Lines count from 1."""
    lines = sources.get(path, "").splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""
