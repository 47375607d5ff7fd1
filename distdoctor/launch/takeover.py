"""The host that judges for many is gone, and all have recorded into one folder: one of the others judges what lies there.

Whoever writes its name first judges. The others wait a moment for the verdict, and else have their own part alone: no verdict
is worth many seconds of waiting for one more host that may be lost.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.sent_verdict import pack_verdict, unpack_verdict
from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import NEW, read_bytes, write_whole

AWAITED_SECONDS = 2.0  # beside the 3 that host 0 had: a partial verdict is due after 5
LOOK_SECONDS = 0.1
LARGEST_BYTES = 64 << 20


class Takeover:
    """In one run folder, by the host of this name; of each start of the ranks once."""

    def __init__(self, folder: Path, host: str) -> None:
        self._folder, self._host = folder, host
        self._claimed = -1  # the start of which we judge

    def claim(self, attempt: int) -> bool:
        """Whether we judge; False where another host does, or the folder takes nothing."""
        try:
            with open(os.open(self._path("judge", attempt), NEW, 0o600), "w", encoding="utf-8") as file:
                file.write(self._host)
        except OSError:
            return False
        self._claimed = attempt
        return True

    def is_ours(self, attempt: int) -> bool:
        """Whether we have claimed it."""
        return self._claimed == attempt

    def give(self, attempt: int, found: Diagnosis) -> None:
        """Leave the verdict to the others."""
        write_whole(self._path("verdict", attempt), pack_verdict(found).hex())

    def take(self, attempt: int) -> tuple[str, Diagnosis] | None:
        """Who judges, and the verdict; None where it does not come in time."""
        late = time.monotonic() + AWAITED_SECONDS
        while time.monotonic() < late:
            try:
                found = unpack_verdict(bytes.fromhex(self._text("verdict", attempt)))
                return self._text("judge", attempt), found
            except (UnreadableRecording, ValueError):  # not there yet, or damaged
                time.sleep(LOOK_SECONDS)
        return None

    def _text(self, name: str, attempt: int) -> str:
        return read_bytes(self._path(name, attempt), LARGEST_BYTES).decode("ascii", "replace")

    def _path(self, name: str, attempt: int) -> Path:
        return self._folder / f"{name}.a{attempt}.txt"
