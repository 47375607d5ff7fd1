"""Read one rank's trace from outside, at any moment: while the rank runs, after it was killed, on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distdoctor.errors import UnreadableRecording
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
    try:
        # A copy, not a mapping: the writer goes on, and a file truncated under a mapping would kill us with SIGBUS.
        data = path.read_bytes()
    except OSError as trouble:
        raise UnreadableRecording(
            f"{path} cannot be read: {trouble}",
            way_out="Copy the run folder again, or examine the other ranks without it.",
        ) from trouble
    return parse_trace(data, str(path), only=only)


def parse_trace(data: bytes, source: str, *, only: frozenset[str] | None = None) -> TraceReader:
    """The trace whose bytes are `data`; `source` names it in errors."""
    sections = _sections(data, source)
    records = layout.RECORDS
    rows: dict[str, Rows] = {}
    lost: dict[str, int] = {}
    texts: tuple[str, ...] = ("",)
    for name, offset, stride, capacity, written in sections:
        if name == TEXTS:
            texts = _texts(data, offset, min(written, capacity))
        elif name in records and (only is None or name in only):
            if stride != records[name].size:
                raise UnreadableRecording(
                    f"{source} holds {name} of {stride} bytes each, where its layout has {records[name].size}",
                    way_out="Copy it again; if it stays so, examine it with the distdoctor that recorded it.",
                )
            rows[name], lost[name] = _ring(data, records[name], offset, capacity)
    return TraceReader(_head(data), rows, lost, texts)


def _sections(data: bytes, source: str) -> list[tuple[str, int, int, int, int]]:
    def refuse(why: str, way_out: str) -> UnreadableRecording:
        return UnreadableRecording(f"{source} {why}", way_out=way_out)

    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        raise refuse(
            "is no distdoctor trace", "Point at the run folder that distdoctor made (.distdoctor/runs/latest)."
        )
    header = dict(zip(HEADER.offsets, HEADER.packer.unpack_from(data, 0), strict=True))
    if header["version"] != layout.VERSION:
        older = header["version"] < layout.VERSION
        raise refuse(
            f"was written by {'an older' if older else 'a newer'} distdoctor (layout {header['version']}, this one reads "
            f"{layout.VERSION})",
            "Examine it with the distdoctor that recorded it."
            if older
            else "Upgrade distdoctor here: pip install -U distdoctor.",
        )
    if len(data) < header["file_bytes"]:
        raise refuse(
            f"is truncated: {len(data)} of {header['file_bytes']} bytes",
            "Copy it again; the other ranks can be examined.",
        )
    found = []
    for number in range(min(header["section_count"], 64)):
        name, offset, stride, capacity, written = SECTION.packer.unpack_from(data, SECTIONS_AT + number * SECTION.size)
        if offset + stride * capacity > len(data):
            raise refuse("is torn: a section lies outside the file", "Copy it again; the other ranks can be examined.")
        found.append((name.rstrip(b"\0").decode("ascii", "replace"), offset, stride, capacity, written))
    return found


def _head(data: bytes) -> TraceHead:
    header = dict(zip(HEADER.offsets, HEADER.packer.unpack_from(data, 0), strict=True))
    host = header["host"].rstrip(b"\0").decode("utf-8", "replace")
    boot = header["boot"].hex() if any(header["boot"]) else ""
    kept = {name: header[name] for name in TraceHead.__dataclass_fields__ if name not in ("host", "boot")}
    return TraceHead(**kept, host=host, boot=boot)


def _ring(data: bytes, record: Record, offset: int, capacity: int) -> tuple[Rows, int]:
    """The whole records of a ring in the order of writing, and how many it has forgotten."""
    dtype = dtype_of(record)
    rows = np.frombuffer(data, dtype, capacity, offset)
    whole = rows[(rows["seq"] == rows["end"]) & (rows["seq"] > 0)]
    whole = whole[np.argsort(whole["seq"], kind="stable")]
    first = int(whole["seq"][0]) if len(whole) else 1
    return whole, first - 1


def _texts(data: bytes, offset: int, used: int) -> tuple[str, ...]:
    texts, at, end = [""], offset, offset + used
    while at + TEXT_HEAD.size <= end:
        (length,) = TEXT_HEAD.unpack_from(data, at)
        at += TEXT_HEAD.size
        texts.append(data[at : at + length].decode("utf-8", "replace"))
        at += length
    return tuple(texts)
