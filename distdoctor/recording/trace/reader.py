"""Read one rank's trace from outside, at any moment: while the rank runs, after it was killed, on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distdoctor.errors import TornRecording, UnreadableRecording
from distdoctor.recording.files import head_of, read_bytes
from distdoctor.recording.trace import layout
from distdoctor.recording.trace.layout import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SECTION,
    SECTIONS_AT,
    TEXT_HEAD,
    TEXTS,
    Record,
)
from distdoctor.recording.trace.process_key import ProcessKey

Rows = NDArray[np.void]
MOST_THREADS = 64  # of a rank that write records at one moment
LARGEST_BYTES = 64 << 20  # a trace with every stream has 4 MiB

_NUMPY_CODES = {"Q": "<u8", "q": "<i8", "I": "<u4", "i": "<i4", "H": "<u2", "B": "u1", "d": "<f8", "f": "<f4"}


@cache
def dtype_of(record: Record) -> np.dtype[np.void]:
    """The numpy dtype of a record of the layout; byte strings (`4064s`) become arrays of unsigned 32 bit."""
    fields: list[tuple[str, str] | tuple[str, str, int]] = []
    for name, code in record.fields:
        if code.endswith("s"):
            fields.append((name, "<u4", int(code[:-1]) // 4))
        else:
            fields.append((name, _NUMPY_CODES[code]))
    return np.dtype(fields)


@dataclass(frozen=True)
class TraceHead:
    """Who wrote the trace, from its header."""

    rank: int
    world_size: int
    local_rank: int
    attempt: int
    pid: int
    pid_started: int
    wall_ns: int
    monotonic_ns: int
    pid_namespace: int
    host: str
    boot: str

    @property
    def process(self) -> ProcessKey:
        """The process that wrote it."""
        return ProcessKey(self.pid, self.pid_started, self.host, self.boot, self.pid_namespace)


@dataclass(frozen=True)
class TraceReader:
    """A copy of everything that one trace held at the moment of reading. Rows are in the order in which they were written.

    `rows["calls"]` etc. are structured arrays with the fields of `layout.CALL`, ...; `lost["calls"]` counts the records that
    the ring has forgotten; `texts[i]` is the text of id i.
    """

    head: TraceHead
    rows: Mapping[str, Rows]
    lost: Mapping[str, int]
    texts: tuple[str, ...]


def read_trace(path: Path, *, only: frozenset[str] | None = None) -> TraceReader:
    """The trace at `path`. `only` names the sections to read (all when None).

    UnreadableRecording: the file is no trace, is truncated, or was written by a newer distdoctor.
    """
    # A copy, not a mapping: the writer goes on, and a file truncated under a mapping would kill us with SIGBUS.
    return parse_trace(read_bytes(path, LARGEST_BYTES), str(path), only=only)


def read_head(path: Path) -> TraceHead:
    """Who writes the trace at `path`, by its first bytes alone.

    UnreadableRecording: the file is no trace, or was written by another distdoctor.
    """
    return _head(head_of(path, HEADER_BYTES), str(path))[0]


def parse_trace(data: bytes, source: str, *, only: frozenset[str] | None = None) -> TraceReader:
    """The trace whose bytes are `data`; `source` names it in errors."""
    head, file_bytes = _head(data, source)
    if len(data) < file_bytes:
        raise _torn(source, f"is truncated: {len(data)} of {file_bytes} bytes")
    sections = _sections(data, source)
    records = layout.RECORDS
    rows: dict[str, Rows] = {}
    lost: dict[str, int] = {}
    texts: tuple[str, ...] = ("",)
    for name, offset, stride, capacity, written in sections:
        if name == TEXTS:
            texts = _texts(data, offset, min(written, capacity))
        elif name in records and (only is None or name in only):
            record = layout.record_of(name, stride) or records[name]
            ring, lost[name] = _ring(data, record, offset, capacity, source)
            rows[name] = widened(name, ring)
    return TraceReader(head, rows, lost, texts)


def _head(data: bytes, source: str) -> tuple[TraceHead, int]:
    """The header of what is a trace of a version that this distdoctor knows, and how many bytes the whole of it has."""
    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        raise UnreadableRecording(
            f"{source} is no distdoctor trace",
            way_out="Point at the run folder that distdoctor made (.distdoctor/runs/latest).",
        )
    header = dict(zip(HEADER.offsets, HEADER.packer.unpack_from(data, 0), strict=True))
    if header["version"] != layout.VERSION:
        older = header["version"] < layout.VERSION
        raise UnreadableRecording(
            f"{source} was written by {'an older' if older else 'a newer'} distdoctor (layout {header['version']}, "
            f"this one reads {layout.VERSION})",
            way_out="Examine it with the distdoctor that recorded it."
            if older
            else "Upgrade distdoctor here: pip install -U distdoctor.",
        )
    world = header["world_size"]
    if not (0 <= header["rank"] < layout.MOST_RANKS and -1 <= world <= layout.MOST_RANKS and header["attempt"] >= 0):
        raise _torn(source, f"is damaged: rank {header['rank']} of {world}, start {header['attempt']}")
    host = header["host"].rstrip(b"\0").decode("utf-8", "replace")
    boot = header["boot"].hex() if any(header["boot"]) else ""
    kept = {name: header[name] for name in TraceHead.__dataclass_fields__ if name not in ("host", "boot")}
    return TraceHead(**kept, host=host, boot=boot), header["file_bytes"]


def _torn(source: str, why: str) -> TornRecording:
    return TornRecording(f"{source} {why}", way_out="Copy it again; the other ranks can be examined.")


def _sections(data: bytes, source: str) -> list[tuple[str, int, int, int, int]]:
    """The sections of the directory, which must hold every one that each trace has, in the layout's own strides."""
    count = HEADER.packer.unpack_from(data, 0)[list(HEADER.offsets).index("section_count")]
    found = []
    for number in range(min(count, 64)):
        raw, offset, stride, capacity, written = SECTION.packer.unpack_from(data, SECTIONS_AT + number * SECTION.size)
        name = raw.rstrip(b"\0").decode("ascii", "replace")
        if offset < HEADER_BYTES or offset + stride * capacity > len(data):
            raise _torn(source, "is torn: a section lies outside the file")
        if not capacity or (name != TEXTS and layout.record_of(name, stride) is None):
            raise _torn(source, f"is damaged: its section {name[:24]!r} is none that distdoctor writes")
        found.append((name, offset, stride, capacity, written))
    absent = {record.name for record, _ in layout.RINGS} | {TEXTS}
    absent -= {name for name, *_ in found}
    if absent:
        raise _torn(source, f"is damaged: its directory lacks {', '.join(sorted(absent))}")
    return found


def _ring(data: bytes, record: Record, offset: int, capacity: int, source: str) -> tuple[Rows, int]:
    """The whole records of a ring in the order of writing, and how many it has forgotten.

    A record has its number at both ends and its place by that number. One that has not is being written at this moment, and
    there are no more of those than threads; more of them are damage.
    """
    rows = np.frombuffer(data, dtype_of(record), capacity, offset)
    placed = (rows["seq"].astype(np.int64) - 1) % capacity == np.arange(capacity)
    is_whole = (rows["seq"] == rows["end"]) & (rows["seq"] > 0) & (rows["seq"] < 1 << 48) & placed
    begun = np.count_nonzero(~is_whole & ((rows["seq"] > 0) | (rows["end"] > 0)))
    whole = rows[is_whole]
    whole = whole[np.argsort(whole["seq"], kind="stable")]
    first, last = (int(whole["seq"][0]), int(whole["seq"][-1])) if len(whole) else (1, 0)
    if begun > MOST_THREADS or last - first + 1 - len(whole) > MOST_THREADS:
        raise _torn(source, f"is damaged: {begun} of its {capacity} {record.name} are no records")
    return whole, first - 1


def widened(name: str, rows: Rows) -> Rows:
    """The rows with all fields that the record has by now; 0 in those that whoever wrote them did not know."""
    dtype = dtype_of(layout.RECORDS[name])
    if rows.dtype == dtype:
        return rows
    wide = np.zeros(len(rows), dtype)
    for field in rows.dtype.names or ():
        wide[field] = rows[field]
    return wide


def _texts(data: bytes, offset: int, used: int) -> tuple[str, ...]:
    texts, at, end = [""], offset, offset + used
    while at + TEXT_HEAD.size <= end:
        (length,) = TEXT_HEAD.unpack_from(data, at)
        at += TEXT_HEAD.size
        texts.append(data[at : at + length].decode("utf-8", "replace"))
        at += length
    return tuple(texts)
