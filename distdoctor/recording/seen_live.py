"""What was seen and said of a job from outside while it ran, kept in its run folder: its end wipes out the processes, not the
words.

seen-ID.json     by the launcher with that ID, or by `hang-dump`: the newest stacks, and what was said (`diagnosis.said_live`)
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import LARGEST_JSON, read_bytes
from distdoctor.recording.foreign_values import MOST_VALUES, parse_json, values_in_json
from distdoctor.recording.stacks import Stacks

PREFIX = "seen-"
BY_HANG_DUMP = "hang-dump"
_CHECK = re.compile(rb'\{"check":"([0-9a-f]{8})",')
_ADDED = len('"check":"00000000",')


@dataclass(frozen=True)
class SeenLive:
    """One observer's account of one start of the ranks (`attempt`). `stacks` are the newest that it took, at `wall_ns`. `said` is
    what it said, as plain values that `diagnosis.said_live` reads: a recording knows no findings."""

    by: str = ""
    attempt: int = 0
    wall_ns: int = 0
    stacks: Stacks | None = None
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its file, which no other observer shares."""
        return f"{PREFIX}{self.by.removeprefix('host-').removesuffix('.json')}.json"

    def to_json(self) -> str:
        """The text of its file, with a checksum of what it says; without the stacks where they would make it larger than what is
        read again."""
        text = msgspec.json.encode(self, enc_hook=_plain)
        if len(text) + _ADDED > LARGEST_JSON or values_in_json(text) >= MOST_VALUES:
            text = msgspec.json.encode(replace(self, stacks=None), enc_hook=_plain)
        return f'{{"check":"{zlib.crc32(text):08x}",{text[1:].decode()}'


def _plain(value: Any) -> Any:
    """Numpy's numbers and arrays as Python's, everything else that JSON has no word for as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def read_seen_live(folder: Path) -> dict[str, SeenLive | None]:
    """What the observers of every start left behind, by the names of their files; None where that cannot be read, or is not what
    they wrote."""
    return {path.name: _read(path) for path in sorted(folder.glob(f"{PREFIX}*.json"))}


def of_attempt(accounts: Iterable[SeenLive | None], attempt: int) -> tuple[SeenLive, ...]:
    """Those of one start, the launchers' first, then the newest last."""
    found = [one for one in accounts if one is not None and one.attempt == attempt]
    return tuple(sorted(found, key=lambda one: (one.by == BY_HANG_DUMP, one.wall_ns)))


def _read(path: Path) -> SeenLive | None:
    try:
        content = read_bytes(path, LARGEST_JSON)
        noted = _CHECK.match(content)  # older ones have none
        if noted is not None and int(noted[1], 16) != zlib.crc32(b"{" + content[noted.end() :]):
            return None
        return msgspec.convert(parse_json(content), SeenLive, str_keys=True)
    except (UnreadableRecording, ValueError, msgspec.ValidationError):
        return None


def newest_stacks(seen: Sequence[SeenLive]) -> SeenLive | None:
    """The account with the newest stacks; None where nobody took any."""
    return max((one for one in seen if one.stacks), key=lambda one: one.wall_ns, default=None)
