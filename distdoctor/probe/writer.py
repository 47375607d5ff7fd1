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
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from distdoctor.probe.interruptions import hand_on, suppressed
from distdoctor.recording.trace import layout
from distdoctor.recording.trace.events import ProbeTrouble, TraceEvent, encode
from distdoctor.recording.trace.layout import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SECTION,
    SECTIONS_AT,
    SITE_SEPARATOR,
    TEXT_BYTES,
    TEXT_HEAD,
    TEXTS,
    VERSION,
    Claim,
    Record,
    source_digest,
    source_text,
)
from distdoctor.recording.trace.process_key import boot_id, pid_namespace, started_at

LARGEST_SOURCE = 1 << 20  # bytes; what is larger is generated, and nobody quotes it
_U64 = struct.Struct("<Q")
FAILED = (1 << 64) - 1  # -1 in a field that `Ring.patch` writes without a sign: what began there failed
FOUR = struct.Struct("<QQQq")  # the first fields of a group: how many calls, their two prefixes, when
_U16 = struct.Struct("<H")


def file_name(rank: int, attempt: int) -> str:
    """`rank-00003.a0.trace`: one file per rank and restart."""
    return f"rank-{rank:05d}.a{attempt}.trace"


def file_stem(rank: int, attempt: int) -> str:
    """`rank-00003.a0`: what the names of all files of one rank and restart begin with."""
    return file_name(rank, attempt).removesuffix(".trace")


@cache
def _writers(record: Record) -> Callable[..., tuple[Callable[..., int], Callable[..., None]]]:
    """Makes `Ring.write` and `Ring.rewrite` for records of this kind: the fields between `seq` and `end` by name, all others 0.

    Made as source, as `namedtuple` does it: on the path of every collective a call with names costs 0.1 us more than one by
    position, one through a dictionary 2 us. What a ring is made of is bound once, not looked up in it each
    time; its names begin with `_`, as no field does.
    """
    fields = [(name, 'b""' if code.endswith("s") else "0") for name, code in record.fields[1:-1]]
    named, values = ", ".join(f"{name}={default}" for name, default in fields), ", ".join(name for name, _ in fields)
    source = (
        "def bound(_following, _place, _pack, _memory, _offset, _capacity, _stride):\n"
        f"    def write(*, {named}):\n"
        "        seq = _following()\n"
        f"        _pack(_memory, _offset + (seq - 1) % _capacity * _stride, seq, {values}, seq)\n"
        "        return seq\n"
        f"    def rewrite(seq, *, {named}):\n"
        "        at = _place(seq)\n"
        "        if at is not None:\n"
        f"            _pack(_memory, at, seq, {values}, seq)\n"
        "    return write, rewrite\n"
    )
    made: dict[str, Any] = {}
    exec(source, made)  # noqa: S102 - nothing of it comes from outside this package
    bound: Callable[..., tuple[Callable[..., int], Callable[..., None]]] = made["bound"]
    return bound


class Ring:
    """One section of fixed-size records. `write` stamps a record at both ends with its number and returns that number.

    No lock: the next number is taken atomically, and one `pack_into` under the GIL is not torn by a second thread.
    """

    __slots__ = ("_capacity", "_following", "_map", "_offset", "_stride", "fields", "rewrite", "write")

    write: Callable[..., int]  # (*, field=0, ...): append a record, return its number
    rewrite: Callable[..., None]  # (number, *, field=0, ...): the record with other values, while it is kept

    def __init__(self, memory: mmap.mmap, record: Record, offset: int, capacity: int) -> None:
        self._map, self._offset, self._capacity = memory, offset, capacity
        self._stride, self.fields = record.size, record.offsets
        following, pack = itertools.count(1).__next__, record.packer.pack_into
        self._following = following
        self.write, self.rewrite = _writers(record)(following, self._place, pack, memory, offset, capacity, record.size)

    def parts_of(self, parts: struct.Struct) -> Callable[[int, int, int, bytes, int, int, int, bytes], int]:
        """`write` for calls, by position and in parts: see `layout.CALL_PARTS`. On the path of every collective."""
        following, pack, memory = self._following, parts.pack_into, self._map
        offset, capacity, stride = self._offset, self._capacity, self._stride

        def write(
            entered: int, returned: int, number: int, size: bytes, prefix: int, sites: int, step: int, place: bytes
        ) -> int:
            seq = following()
            at = offset + (seq - 1) % capacity * stride
            pack(memory, at, seq, entered, returned, 0, number, size, prefix, sites, step, place, seq)
            return seq

        return write

    def _place(self, seq: int) -> int | None:
        """Where record `seq` lies, None when the ring has come round and given its place away."""
        at = self._offset + (seq - 1) % self._capacity * self._stride
        return at if _U64.unpack_from(self._map, at)[0] == seq else None

    def place_of(self, seq: int) -> tuple[memoryview, mmap.mmap, int]:
        """Where `FOUR` sets the first fields after `seq` of that record: its number, which tells whether it is still kept, the
        memory, and the place in it."""
        return self.window(seq).cast("Q"), self._map, self._offset + (seq - 1) % self._capacity * self._stride + 8

    def patch(self, seq: int, field_offset: int, value: int) -> None:
        """Set one 64-bit field of record `seq`, while it is kept."""
        at = self._place(seq)
        if at is not None:
            _U64.pack_into(self._map, at + field_offset, value)

    def patch_of(self, field_offset: int) -> Callable[[int, int], None]:
        """`patch` for one field: (number, value). On the path of every collective, so what it is made of is bound once."""
        capacity, size, place = self._capacity, self._stride // 8, field_offset // 8
        words = memoryview(self._map)[self._offset : self._offset + capacity * self._stride].cast("Q")

        def patch(seq: int, value: int) -> None:
            at = (seq - 1) % capacity * size
            if words[at] == seq:
                words[at + place] = value

        return patch

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


def _text_record(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")[:16384]
    return TEXT_HEAD.pack(len(raw)) + raw


class Texts:
    """Every text once; records refer to them by number, 0 is the empty text. What does not fit any more becomes 0."""

    def __init__(self, memory: mmap.mmap, offset: int, written_at: int) -> None:
        self._map, self._offset, self._written = memory, offset, slice(written_at, written_at + _U64.size)
        self._ids: dict[str, int] = {"": 0}
        self._used = 0
        self._sources: set[str] = set()
        self.full = False

    def id(self, text: str) -> int:
        """The number of this text, which is written when it is new.

        No lock: a signal handler that comes here in the middle of this would wait for its own thread. Between the comparison
        and the last assignment there is neither a call nor a loop, so that the interpreter lets nobody else in.
        """
        raw = None
        while True:
            known = self._ids.get(text)
            if known is not None:
                return known
            raw = raw if raw is not None else _text_record(text)
            used = self._used
            end, number = used + len(raw), len(self._ids)
            if end > TEXT_BYTES:
                self.full = True
                return 0
            place, told = slice(self._offset + used, self._offset + end), _U64.pack(end)
            if self._used == used:
                self._map[place] = raw
                self._map[self._written] = told
                self._ids[text] = number
                self._used = end
                break
        self._note_source(text)
        return number

    def _note_source(self, text: str) -> None:
        """With the first line of a source file goes the digest of the file: it may be edited before anybody reads the trace."""
        path, *rest = text.split(SITE_SEPARATOR)
        if len(rest) == 2 and path.endswith(".py"):
            self.note_source(path)

    def note_source(self, path: str) -> None:
        """The digest of a source file, once."""
        if path in self._sources:
            return
        self._sources.add(path)
        try:
            with open(path, "rb") as file:
                data = file.read(LARGEST_SOURCE + 1)
        except OSError as error:
            hand_on(error)
            return
        if len(data) <= LARGEST_SOURCE:
            self.id(source_text(path, source_digest(data)))


def _make_room(path: str) -> None:
    """Take away the trace at `path` and what lies beside it: its writer was no rank, and learns from its own header that it gave
    way."""
    with suppressed(OSError):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(fd, _U64.pack(Claim.GAVE_WAY), HEADER.offsets["claim"])
        finally:
            os.close(fd)
    folder, name = os.path.split(path)
    stem = name.removesuffix("trace")
    for other in os.listdir(folder):
        if other.startswith(stem):
            with suppressed(OSError):
                os.unlink(os.path.join(folder, other))


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
        *,
        replaces: bool = False,
    ) -> None:
        """Create `folder/rank-R.aA.trace`, with sections of their own for those `streams` that have some.

        FileExistsError: another process records as this rank already. With `replaces` that one gives way.
        """
        self.rank, self.attempt = rank, attempt
        self.in_memory = False
        sections, size = layout.plan(streams)
        path = os.path.join(folder, file_name(rank, attempt))
        if replaces:
            _make_room(path)
        self._map = self._reserve(path, size)
        self._write_header(rank, world_size, local_rank, attempt, sections, size)
        self.rings = rings = {
            name: Ring(self._map, layout.RECORDS[name], offset, capacity)
            for name, offset, _, capacity in sections
            if name in layout.RECORDS
        }
        self.calls, self.groups, self.steps = rings["calls"], rings["groups"], rings["steps"]
        self.events, self.passes, self.blocks, self.workers = (
            rings[name] for name in ("events", "passes", "blocks", "workers")
        )
        texts_number = next(i for i, section in enumerate(sections) if section[0] == TEXTS)
        written_at = SECTIONS_AT + texts_number * SECTION.size + SECTION.offsets["written"]
        self.texts = Texts(self._map, sections[texts_number][1], written_at)
        self._map[: len(MAGIC)] = MAGIC  # last: a reader sees a whole header or none

    def __getattr__(self, name: str) -> Ring:
        """The ring of a section that only some streams have: `trace.memory`, `trace.updates`."""
        try:
            ring: Ring = self.__dict__["rings"][name]
        except KeyError:
            raise AttributeError(name) from None
        return ring

    def _reserve(self, path: str, size: int) -> mmap.mmap:
        """A shared mapping of `size` bytes that cannot fail later. ftruncate alone would make a full disk a SIGBUS."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            return mmap.mmap(fd, size)
        except OSError as trouble:
            hand_on(trouble)
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
        except OSError as error:  # `ulimit -f` binds memory files as well: nobody outside will read this one
            hand_on(error)
            os.close(fd)
            return mmap.mmap(-1, size)
        try:
            where = f"{os.getpid()}-{fd}-{boot_id()}-{pid_namespace()}-{started_at(os.getpid())}"
            os.close(os.open(f"{path}.memory-{where}", os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError as error:
            hand_on(error)
            # the disk does not even take an empty file: the launcher reports a rank without recording
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
            Claim.NONE,
        )
        for number, (name, offset, stride, capacity) in enumerate(sections):
            at = SECTIONS_AT + number * SECTION.size
            SECTION.packer.pack_into(self._map, at, name.encode(), offset, stride, capacity, 0)

    def claim(self, claim: Claim) -> None:
        """Say how sure it is that this process is the rank."""
        if not self.gave_way:
            _U64.pack_into(self._map, HEADER.offsets["claim"], claim)

    @property
    def claimed(self) -> bool:
        """Whether this process is the rank for sure."""
        return self._claim() == Claim.RANK

    @property
    def gave_way(self) -> bool:
        """Whether another process has the place of this one."""
        return self._claim() == Claim.GAVE_WAY

    def _claim(self) -> int:
        (claim,) = _U64.unpack_from(self._map, HEADER.offsets["claim"])
        return int(claim)

    def set_world(self, world_size: int) -> None:
        """The world as init_process_group found it (a script that sets RANK itself may differ from the launcher)."""
        struct.pack_into("<i", self._map, HEADER.offsets["world_size"], world_size)

    def note(self, event: TraceEvent, *, site: int = 0) -> int:
        """Write one of the rare things; `site` is the text id of the user's line. Returns the number of the record."""
        return self.events.write(**self._noted(event, site))

    def note_trouble(self, what: str) -> None:
        """Write down that the recorder, or a part of it, falls silent. The clock, or the texts, may be what has failed it."""
        event = ProbeTrouble(what[:500])
        words: Callable[[], dict[str, int]]
        for words in (
            lambda: self._noted(event, 0),
            lambda: {"kind": event.number, **encode(event, self.texts.id)},
            lambda: {"kind": event.number},
        ):
            with suppressed(Exception):
                self.events.write(**words())
                return

    def note_again(self, seq: int, event: TraceEvent, *, site: int = 0) -> None:
        """The event `seq` as it is by now."""
        self.events.rewrite(seq, **self._noted(event, site))

    def _noted(self, event: TraceEvent, site: int) -> dict[str, int]:
        return {"at_ns": time.monotonic_ns(), "kind": event.number, "site": site, **encode(event, self.texts.id)}
