"""A verdict that travels: the diagnosis of one host for all others, as compressed JSON.

It comes from another process and may be damaged, so it is read within bounds, and into the types that it must have.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

import msgspec

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.errors import UnreadableRecording
from distdoctor.recording.coverage import Coverage
from distdoctor.recording.foreign_values import parse_json

MAGIC = b"DDVERDICT1"  # the last digit is the format: readers refuse another one
LARGEST_BYTES = 64 << 20  # unpacked; of 10,240 ranks it is 1 to 2 MiB
MOST_RANKS = 1 << 22
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 3}]
_MEMORY = 64 << 20  # bytes that unpacking may take beside what it unpacks


# What stays at home: the recording, of which each host has its part, the checks, and what was only tried here.
_STAYS = frozenset({"recording", "checks", "tried", "judged_by"})
_NAMES = tuple(one.name for one in fields(Diagnosis) if one.name not in _STAYS)


@cache
def _sent() -> type[msgspec.Struct]:
    """The fields of a `Diagnosis` that travel, with its types."""
    types = get_type_hints(Diagnosis)
    return msgspec.defstruct("Sent", [(name, types[name]) for name in _NAMES])


def pack_verdict(diagnosis: Diagnosis) -> bytes:
    """The diagnosis without what it was made of."""
    values = {name: getattr(diagnosis, name) for name in _NAMES}
    plain = msgspec.to_builtins(values, enc_hook=_plain, str_keys=True)
    text = json.dumps(plain, separators=(",", ":")).encode()  # file names that are no UTF-8 become escapes
    return MAGIC + lzma.compress(text, check=lzma.CHECK_CRC32, filters=_FILTERS)


def unpack_verdict(data: bytes) -> Diagnosis:
    """The diagnosis that was packed.

    UnreadableRecording: it is none, is damaged, or was written by another distdoctor.
    """
    if not data.startswith(MAGIC):
        raise UnreadableRecording("this is no verdict of this version", way_out="Install one version on all hosts.")
    try:
        unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY)
        text = unpacker.decompress(data[len(MAGIC) :], LARGEST_BYTES)
        if not unpacker.eof:
            raise ValueError(f"it is cut off, or larger than {LARGEST_BYTES >> 20} MiB")
        sent = msgspec.convert(parse_json(text), _sent(), str_keys=True)
        found = Diagnosis(**{name: getattr(sent, name) for name in _NAMES})
        if not all(0 <= number <= MOST_RANKS for number in _numbers(found)):
            raise ValueError("it names ranks that cannot be")
    except (lzma.LZMAError, EOFError, msgspec.MsgspecError, ValueError, RecursionError) as trouble:
        raise UnreadableRecording(f"the verdict is damaged: {trouble}", way_out="Examine the run folders.") from trouble
    return found


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _numbers(found: Diagnosis) -> Iterable[int]:
    """Every number of a rank, and how many there are: readers count up to it."""
    yield found.world_size
    yield from (found.job.world_size, found.job.hosts, *found.job.ends, *found.job.started)
    for finding in (*found.findings, *found.suppressed, *(one for one, _ in found.withdrawn)):
        yield from finding.ranks
        yield from (rank for place in finding.places for rank in place.ranks)
    for lost in found.job.lost:
        yield from lost.ranks
    if found.coverage is not None:
        yield found.coverage.expected
        yield from _ranks_of(found.coverage)


def _ranks_of(coverage: Coverage) -> Iterable[int]:
    for name in ("whole", "silenced", "torn", "unreadable", "unread", "elsewhere", "missing", "unsealed"):
        yield from getattr(coverage, name)
    hosts: Mapping[str, tuple[int, ...]] = coverage.hosts
    for ranks in hosts.values():
        yield from ranks
