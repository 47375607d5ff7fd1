"""The text of the user's source files, as long as it is the text that ran: an edited file is no evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import read_bytes
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine, Trouble
from distdoctor.recording.stacks import Stacks
from distdoctor.recording.trace.layout import source_digest, source_of
from distdoctor.recording.trace.redaction import redacted_source

# Bytes of files that were only imported, some 13,000 lines: a second to work out who calls whom.
MOST_OTHERS = 512 << 10
LARGEST_BYTES = 1 << 20  # a source file beyond that is generated; nobody writes a suppression there


@dataclass(frozen=True)
class SourceTexts:
    """`texts`: path -> text, without the secrets that are written out in it. `changed` are files that are not what the ranks ran,
    one sentence each."""

    texts: Mapping[str, str]
    changed: tuple[str, ...] = ()


def read_sources(paths: Iterable[str], ranks: Mapping[int, RankTrace]) -> SourceTexts:
    """These files, and the first of those of which the ranks noted that they had imported them, that are still there, and still
    what every rank ran, as far as the ranks noted it."""
    ran = _digests(ranks)
    texts, changed, wanted, left = {}, [], set(paths), MOST_OTHERS
    for path in (*sorted(wanted), *(path for path in ran if path not in wanted)):
        data = _read(Path(path)) if path in wanted or left > 0 else None
        if data is None:
            continue
        left -= 0 if path in wanted else len(data)
        digests = ran.get(path, {})
        if len(digests) > 1:
            who = ", ".join(named(tuple(found)) for found in digests.values())
            changed += [f"ranks run different versions of {path} ({who}): its lines are not quoted"] * (path in wanted)
        elif digests and source_digest(data) not in digests:
            changed += [f"{path} was changed after it was recorded: its lines are not quoted"] * (path in wanted)
        else:
            texts[path] = redacted_source(data.decode("utf-8", "replace"))
    return SourceTexts(texts, tuple(changed))


def with_sources(recording: Recording) -> Recording:
    """The recording with the text of each user file that its sites mention or that was imported, as far as the files are still
    what the ranks ran."""
    found = read_sources(_mentioned(recording) - recording.sources.keys(), recording.ranks)
    changed = tuple(Trouble(words) for words in found.changed)
    texts = {**recording.sources, **found.texts}
    return replace(recording, sources=texts, troubles=tuple(dict.fromkeys((*recording.troubles, *changed))))


def _mentioned(recording: Recording) -> set[str]:
    found = {site.path for log in recording.ranks.values() for text in log.texts if (site := SourceLine.parse(text))}
    copied = recording.stacks if recording.stacks is not None and recording.stacks.copies else Stacks()
    frames = (frame for process in copied.everybody() for thread in process.threads for frame in thread.frames)
    return found | {frame.path for frame in frames if frame.path.startswith("/") and frame.is_users}


def line_of(sources: Mapping[str, str], path: str, number: int) -> str:
    """One line of a file, "" when it is not there. Lines count from 1."""
    lines = sources.get(path, "").splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _digests(ranks: Mapping[int, RankTrace]) -> dict[str, dict[str, list[int]]]:
    """path -> digest -> the ranks that ran a file of that digest."""
    found: dict[str, dict[str, list[int]]] = {}
    for rank, log in ranks.items():
        for text in log.texts:
            noted = source_of(text) if text.startswith("source\0") else None
            if noted is not None:
                found.setdefault(noted[0], {}).setdefault(noted[1], []).append(rank)
    return found


def _read(path: Path) -> bytes | None:
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > LARGEST_BYTES:
            return None
        return read_bytes(path, LARGEST_BYTES)
    except (OSError, UnreadableRecording):
        return None
