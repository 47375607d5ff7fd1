"""What a launcher asks of the probe: one value, written to a file of the run folder and named to the ranks by one variable.

Standard library only: this module is imported inside the ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import read_json, write_whole
from distdoctor.recording.trace.layout import STREAMS

VARIABLE = "DISTDOCTOR_PROBE"
"""The path of the settings. A process without it is not recorded; a rank that has joined its job hands it on to nobody."""
FILE = "probe.json"
LARGEST_BYTES = 64 << 10


@dataclass(frozen=True)
class ProbeSettings:
    """How the ranks of one launch are recorded."""

    streams: frozenset[str] = STREAMS
    deep: frozenset[str] = frozenset()
    """Streams that look at every step in depth: gradients, memory."""
    every: int = 1
    """Of `deep` gradients: one step in so many."""
    attempt: int | None = None
    """Which start of the ranks this is, where the launcher numbers them; None: the run folder shows it."""
    kill_at: int = 0
    """After so many optimizer steps a rank kills itself, because the user asked for that; 0: never."""
    kill_gently: bool = False
    """By SIGTERM, which its script may handle."""
    budget_bytes: int = 0
    """What `check-memory --budget` allows a rank; 0: nobody said."""

    @property
    def noted_streams(self) -> tuple[str, ...] | None:
        """The streams for a launcher's file; None: everything."""
        return None if self.streams == STREAMS else tuple(sorted(self.streams))

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(self).items()}

    def write(self, folder: Path, file: str = FILE) -> Path:
        """Write the settings of the ranks that record into `folder`; where they are found. OSError: nothing can be written."""
        folder = folder.absolute()
        text = json.dumps({"folder": str(folder), **self.fields()}, indent=1)
        try:
            write_whole(folder / file, text)
        except OSError:
            return _kept_in_memory(text)
        return folder / file

    def hand_over(self, folder: Path, file: str = FILE) -> dict[str, str]:
        """Write the settings; the variable that names them to the ranks. OSError: nothing can be written."""
        return {VARIABLE: str(self.write(folder, file))}


def _kept_in_memory(text: str) -> Path:
    """On a full disk: readable for this user's processes as long as this one lives."""
    fd = os.memfd_create("distdoctor-settings")
    os.write(fd, text.encode("utf-8", "backslashreplace"))
    return Path(f"/proc/{os.getpid()}/fd/{fd}")


def read_settings(path: Path) -> tuple[Path, ProbeSettings]:
    """The run folder and what is recorded there.

    UnreadableRecording: the file is gone, torn, or holds what no settings of this version do.
    """
    content = read_json(path, LARGEST_BYTES)
    if not isinstance(content, dict) or not isinstance(content.get("folder"), str):
        raise _refused(path, "names no run folder")
    folder = Path(content.pop("folder"))
    unknown = content.keys() - {field.name for field in fields(ProbeSettings)}
    if unknown:
        raise _refused(path, f"holds {', '.join(sorted(unknown))}, which this distdoctor does not know")
    try:
        return folder, _settings(content)
    except (TypeError, ValueError) as trouble:
        raise _refused(path, f"holds no settings: {trouble}") from None


def _settings(content: Mapping[str, Any]) -> ProbeSettings:
    values: dict[str, Any] = dict(content)
    for name in ("streams", "deep"):
        if name in values:
            values[name] = frozenset(_texts(name, values[name])) & STREAMS
    for name in ("every", "kill_at", "budget_bytes", "attempt"):
        if values.get(name) is not None and (type(values[name]) is not int or values[name] < 0):
            raise ValueError(f"{name} is {values[name]!r}")
    if not isinstance(values.get("kill_gently", False), bool):
        raise ValueError(f"kill_gently is {values['kill_gently']!r}")
    return ProbeSettings(**values)


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{name} is {value!r}")
    return value


def _refused(path: Path, why: str) -> UnreadableRecording:
    return UnreadableRecording(f"{path} {why}", way_out="Launcher and ranks must use the same distdoctor.")
