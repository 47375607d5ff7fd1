"""The recording of this rank while it is written: one mmap'd file of fixed size, space reserved beforehand.

What is stored here survives SIGKILL of the process: the pages belong to the kernel. Nothing here blocks on the disk.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable
from typing import Any

from distdoctor.recording.trace import layout
from distdoctor.recording.trace.layout import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SECTION,
    SECTIONS_AT,
    TEXT_BYTES,
    TEXT_HEAD,
    TEXTS,
    VERSION,
    EventKind,
    Record,
)
from distdoctor.recording.trace.process_key import boot_id, pid_namespace, started_at

_U64 = struct.Struct("<Q")
_FOUR = struct.Struct("<QQQq")
_U16 = struct.Struct("<H")


def file_name(rank: int, attempt: int) -> str:
    """`rank-00003.a0.trace`: one file per rank and restart."""
    return f"rank-{rank:05d}.a{attempt}.trace"


class Ring:
    """One section of fixed-size records. `write` stamps a record at both ends with its number and returns that number.

    No lock: the next number is taken atomically, and one `pack_into` under the GIL is not torn by a second thread.
    """

    __slots__ = ("_capacity", "_map", "_next", "_offset", "_pack", "_stride", "fields")

    def __init__(self, memory: mmap.mmap, record: Record, offset: int, capacity: int) -> None:
        self._map, self._offset, self._capacity = memory, offset, capacity
        self._pack, self._stride, self.fields = record.packer.pack_into, record.size, record.offsets
        self._next = itertools.count(1).__next__

    def write(self, *values: Any) -> int:
        """Append one record: all fields between `seq` and `end`, in order. Returns its number."""
        seq = self._next()
        self._pack(self._map, self._offset + (seq - 1) % self._capacity * self._stride, seq, *values, seq)
        return seq

    def _place(self, seq: int) -> int | None:
        """Where record `seq` lies, None when the ring has come round and given its place away."""
        at = self._offset + (seq - 1) % self._capacity * self._stride
        return at if _U64.unpack_from(self._map, at)[0] == seq else None

    def rewrite(self, seq: int, *values: Any) -> None:
        """The record `seq` with new values, while it is kept."""
        at = self._place(seq)
        if at is not None:
            self._pack(self._map, at, seq, *values, seq)

    def overwrite(self, seq: int, a: int, b: int, c: int, d: int) -> None:
        """The first four 64-bit fields after `seq` of that record, while it is kept."""
        at = self._place(seq)
        if at is not None:
            _FOUR.pack_into(self._map, at + 8, a, b, c, d)

    def patch(self, seq: int, field_offset: int, value: int) -> None:
        """Set one 64-bit field of record `seq`, while it is kept."""
        at = self._place(seq)
        if at is not None:
            _U64.pack_into(self._map, at + field_offset, value)

    def window(self, seq: int) -> memoryview:
        """The bytes of record `seq` itself. Whoever keeps it looks at the number in front before each write."""
        at = self._offset + (seq - 1) % self._capacity * self._stride
        return memoryview(self._map)[at : at + self._stride]

    def overlay(self, seq: int, field_offset: int, data: bytes) -> bool:
        """Bytes over a part of record `seq`; False when it is no longer kept."""
        at = self._place(seq)
        if at is None:
            return False
        at += field_offset
        self._map[at : at + len(data)] = data
        return True

    def mark(self, seq: int, field_offset: int, bits: int) -> None:
        """Set bits of one 16-bit field of record `seq`, while it is kept."""
        at = self._place(seq)
        if at is not None:
            (old,) = _U16.unpack_from(self._map, at + field_offset)
            _U16.pack_into(self._map, at + field_offset, old | bits)


class Texts:
    """Every text once; records refer to them by number, 0 is the empty text. What does not fit any more becomes 0."""

    def __init__(self, memory: mmap.mmap, offset: int, written_at: int) -> None:
        self._map, self._offset, self._written_at, self._lock = memory, offset, written_at, threading.Lock()
        self._ids: dict[str, int] = {"": 0}
        self._used = 0
        self.full = False

    def id(self, text: str) -> int:
        known = self._ids.get(text)
        if known is not None:
            return known
        with self._lock:
            if text in self._ids:
                return self._ids[text]
            raw = text.encode("utf-8", "replace")[:16384]
            end = self._used + TEXT_HEAD.size + len(raw)
            if end > TEXT_BYTES:
                self.full = True
                return 0
            at = self._offset + self._used
            TEXT_HEAD.pack_into(self._map, at, len(raw))
            self._map[at + TEXT_HEAD.size : at + TEXT_HEAD.size + len(raw)] = raw
            self._used = end
            _U64.pack_into(self._map, self._written_at, end)
            number = self._ids[text] = len(self._ids)
        return number


class TraceWriter:
    """The recording of this process. Rings by the names of their records: `trace.calls`, `trace.steps`, ..."""

    def __init__(
        self,
        folder: str,
        rank: int,
        world_size: int,
        local_rank: int,
        attempt: int,
        streams: Iterable[str] = (),
    ) -> None:
        """Create `folder/rank-R.aA.trace`, with sections of their own for those `streams` that have some.

        FileExistsError: another process records as this rank already.
        """
        self.rank, self.attempt = rank, attempt
        self.in_memory = False
        sections, size = layout.plan(streams)
        self._map = self._reserve(os.path.join(folder, file_name(rank, attempt)), size)
        self._write_header(rank, world_size, local_rank, attempt, sections, size)
        self.rings = rings = {
            name: Ring(self._map, layout.RECORDS[name], offset, capacity)
            for name, offset, _, capacity in sections
            if name in layout.RECORDS
        }
        self.calls, self.groups, self.steps = rings["calls"], rings["groups"], rings["steps"]
        self.events, self.passes, self.blocks = rings["events"], rings["passes"], rings["blocks"]
        texts_number = next(i for i, section in enumerate(sections) if section[0] == TEXTS)
        written_at = SECTIONS_AT + texts_number * SECTION.size + SECTION.offsets["written"]
        self.texts = Texts(self._map, sections[texts_number][1], written_at)
        self._map[: len(MAGIC)] = MAGIC  # last: a reader sees a whole header or none

    def _reserve(self, path: str, size: int) -> mmap.mmap:
        """A shared mapping of `size` bytes that cannot fail later. ftruncate alone would make a full disk a SIGBUS."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            return mmap.mmap(fd, size)
        except OSError as trouble:
            if trouble.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.unlink(path)
            self.in_memory = True
            return self._in_memory(path, size)
        finally:
            os.close(fd)

    def _in_memory(self, path: str, size: int) -> mmap.mmap:
        """Anonymous memory that the launcher can still read through /proc/PID/fd; an empty file's name says where."""
        fd = os.memfd_create("distdoctor")
        try:
            os.ftruncate(fd, size)
        except OSError:  # `ulimit -f` binds memory files as well: nobody outside will read this one
            os.close(fd)
            return mmap.mmap(-1, size)
        try:
            os.close(
                os.open(
                    f"{path}.memory-{os.getpid()}-{fd}-{boot_id()}-{pid_namespace()}", os.O_CREAT | os.O_WRONLY, 0o600
                )
            )
        except OSError:
            pass  # the disk does not even take an empty file: the launcher reports a rank without recording
        return mmap.mmap(fd, size)

    def _write_header(
        self, rank: int, world_size: int, local_rank: int, attempt: int, sections: list[Any], size: int
    ) -> None:
        HEADER.packer.pack_into(
            self._map,
            0,
            b"",
            VERSION,
            HEADER_BYTES,
            size,
            rank,
            world_size,
            local_rank,
            attempt,
            os.getpid(),
            len(sections),
            started_at(os.getpid()),
            time.time_ns(),
            time.monotonic_ns(),
            socket.gethostname().encode()[:63],
            bytes.fromhex(boot_id()),
            pid_namespace(),
        )
        for number, (name, offset, stride, capacity) in enumerate(sections):
            at = SECTIONS_AT + number * SECTION.size
            SECTION.packer.pack_into(self._map, at, name.encode(), offset, stride, capacity, 0)

    def set_world(self, world_size: int) -> None:
        """The world as init_process_group found it (a script that sets RANK itself may differ from the launcher)."""
        struct.pack_into("<i", self._map, HEADER.offsets["world_size"], world_size)

    def event(self, kind: EventKind, text: str = "", *, site: int = 0, more: str = "", a: int = 0, b: int = 0) -> int:
        """Write one of the rare things: an exception, a set_epoch, a new group. Returns the number of the record."""
        return self.events.write(time.monotonic_ns(), kind, 0, site, self.texts.id(text), self.texts.id(more), a, b, 0)
