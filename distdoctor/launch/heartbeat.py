"""Whether ranks still move, asked for a few microseconds: is there a record after the last one that we know of?"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from distdoctor.recording.trace import layout
from distdoctor.recording.trace.layout import CALL, EVENT, PASS, STEP

_SEQ = struct.Struct("<Q")
_LISTENED = {record.name: record for record in (CALL, STEP, EVENT, PASS)}
_RETURNED_AT = CALL.offsets["returned_ns"]


class Heartbeat:
    """One rank's trace, held open. Read with pread: a trace that is truncated under us is an end of file, not a SIGBUS."""

    def __init__(self, path: Path) -> None:
        sections, _ = layout.plan()
        self._rings = {name: (offset, stride, size) for name, offset, stride, size in sections if name in _LISTENED}
        self._last = dict.fromkeys(self._rings, 0)
        self._returned = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def is_of(self, path: Path) -> bool:
        """Whether that is still the file that is held open: the trace of a process that was no rank is replaced."""
        try:
            return os.fstat(self._fd).st_ino == os.stat(path).st_ino
        except OSError:
            return True

    def beats(self) -> bool:
        """Whether the rank wrote anything since the last time."""
        moved = [self._advance(name) for name in self._rings]
        returned = self._last_call_returned()
        changed, self._returned = returned != self._returned, returned
        return any(moved) or changed

    def close(self) -> None:
        os.close(self._fd)

    def _advance(self, name: str) -> bool:
        """Follow one ring to its newest record: in doubling strides, then back in halves."""
        start = self._last[name]
        reached, stride = start, 1
        while self._holds(name, reached + stride):
            reached, stride = reached + stride, stride * 2
        while stride > 1:
            stride //= 2
            if self._holds(name, reached + stride):
                reached += stride
        self._last[name] = reached
        return reached != start

    def _holds(self, name: str, seq: int) -> bool:
        """Whether record `seq` has been written: its place holds it, or one that overwrote it."""
        offset, stride, size = self._rings[name]
        raw = os.pread(self._fd, _SEQ.size, offset + (seq - 1) % size * stride)
        return len(raw) == _SEQ.size and int(_SEQ.unpack(raw)[0]) >= seq

    def _last_call_returned(self) -> int:
        offset, stride, size = self._rings[CALL.name]
        at = offset + (self._last[CALL.name] - 1) % size * stride + _RETURNED_AT
        raw = os.pread(self._fd, _SEQ.size, at) if self._last[CALL.name] else b""
        return int(_SEQ.unpack(raw)[0]) if len(raw) == _SEQ.size else 0
