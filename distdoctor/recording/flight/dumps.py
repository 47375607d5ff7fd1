"""torch's flight recorder dumps, read as a recording: pickle or JSON, of NCCL, gloo and torchcomms, one file per rank.

What a dump lacks stays unknown: roots, reduce operations, monitored_barrier, and gloo's point to point (torch 2.15).
"""

from __future__ import annotations

import io
import json
import pickle  # read by an Unpickler that refuses every class
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import head_of, opened
from distdoctor.recording.flight.entries import FlightDump, text, whole

LARGEST_BYTES = 256 << 20  # a dump of 2,000 entries with stacks is 2 MB; beyond this somebody means harm
MOST_RANKS = 1 << 20  # of one group: ten times the largest job that anybody has run
_NUMBER = re.compile(r"\d{1,9}")
# A number behind the word is the rank, else the last number of the name: nccl_trace_rank_3, rank0_fr.json, node7_rank_3.json,
# node-7.dump_12.pkl; local_rank counts within a host.
NAMED_RANK = re.compile(r"(?<!local)(?<!local[_-])rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin|dump|trace))*$")


class _NoClasses(pickle.Unpickler):
    """A flight recorder dump is made of dicts, lists, texts and numbers; whatever asks for more is no dump."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to another file")


def read_dump(path: Path, rank: int | None = None) -> FlightDump:
    """One dump. The rank is the last number of the file's name unless given.

    UnreadableRecording: torn, no dump at all, or a pickle that wants to run code.
    """
    if rank is None:
        rank = rank_in(path.name)
    if rank is None:
        raise UnreadableRecording(
            f"{path} does not say which rank it is of",
            way_out="Name the files so that they end in the rank: dump_rank_3.",
        )
    return read_bytes(_bytes(path), rank, str(path), _written_ns(path))


def read_bytes(data: bytes, rank: int, source: str, written_ns: int) -> FlightDump:
    """The dump in the bytes of a file, wherever it lies; `source` names it in errors.

    UnreadableRecording: see `read_dump`.
    """
    try:
        return dump_of(_content(data, source), rank, source, written_ns)
    except ValueError as trouble:
        raise _no_dump(source, str(trouble)) from None


def dump_of(content: Mapping[str, Any], rank: int, source: str, written_ns: int) -> FlightDump:
    """The dump of a rank from what its file, or its worker server, holds.

    ValueError: it has no entries.
    """
    entries, config = content.get("entries"), content.get("pg_config") or {}
    if not isinstance(entries, list | tuple) or not isinstance(config, dict) or not set(map(type, entries)) <= {dict}:
        raise ValueError("it holds no entries")
    status = content.get("pg_status") or {}
    return FlightDump(
        rank,
        source,
        _by_number(entries),
        _config_groups(config),
        {
            str(key): (_last(value, "enqueued"), _last(value, "started"), _last(value, "completed"))
            for key, value in (status.items() if isinstance(status, dict) else ())
            if isinstance(value, dict)
        },
        text(content.get("comm_lib_version") or content.get("nccl_version") or ""),
        written_ns,
        {str(name): text(about.get("desc")) for name, about in config.items() if name and isinstance(about, dict)},
    )


def _by_number(entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The entries in the order in which they were made, which is nearly always that of the file."""
    numbers = [entry.get("record_id") for entry in entries]
    if set(map(type, numbers)) == {int} and numbers == sorted(numbers):  # type: ignore[type-var]
        return entries
    return sorted(entries, key=lambda entry: whole(entry.get("record_id")))


def _last(status: Mapping[str, Any], what: str) -> int:
    return whole(status.get(f"last_{what}_collective", -1))


def rank_in(name: str) -> int | None:
    """The rank in the name of a dump file."""
    named = {int(number) for number in NAMED_RANK.findall(name)}
    if len(named) == 1:
        return named.pop()
    match = _RANK.search(name)
    return int(match[1]) if match and len(match[1]) < 8 else None


def looks_like_dump(path: Path) -> bool:
    """Whether a file is a dump, by its first bytes."""
    return begins_like_dump(head_of(path, 4096))


def begins_like_dump(head: bytes) -> bool:
    """Whether the first bytes are those of a dump: a protocol 2 pickle of a dict, or JSON with the dump's words."""
    if head[:2] == b"\x80\x02" or head[:2] in (b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return True
    return head.lstrip()[:1] == b"{" and any(
        word in head for word in (b'"entries"', b'"pg_config"', b'"comm_lib_version"')
    )


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise _no_dump(str(path), f"{path.stat().st_size} bytes are more than any flight recorder writes")
        with opened(path) as file:
            return file.read(LARGEST_BYTES)
    except OSError as trouble:
        raise UnreadableRecording(
            f"{path} cannot be read: {trouble.strerror}", way_out="Copy it again, or leave it out."
        ) from None


def _content(data: bytes, source: str) -> Mapping[str, Any]:
    try:
        found = json.loads(data) if data.lstrip()[:1] == b"{" else _NoClasses(_buffered(data)).load()
    except pickle.UnpicklingError as trouble:
        raise _no_dump(source, str(trouble)) from None
    except Exception as trouble:  # a torn or crafted file fails in any of the ways that bytes can be wrong
        raise _no_dump(source, f"{type(trouble).__name__}: {trouble}") from None
    if not isinstance(found, dict):
        raise _no_dump(source, f"it holds a {type(found).__name__}")
    return found


def _buffered(data: bytes) -> io.BufferedReader:
    """The unpickler asks a file that can `peek` for large pieces, and any other for each opcode: five times slower."""
    return io.BufferedReader(io.BytesIO(data), 1 << 20)


def _no_dump(source: str, why: str) -> UnreadableRecording:
    return UnreadableRecording(
        f"{source} is no flight recorder dump, or a torn one: {why[:200]}",
        way_out="Copy it again from the cluster; the other ranks can be examined without it.",
    )


def _config_groups(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The members of the groups whose name is known. gloo writes all of its groups under one empty name (torch 2.13, 2.15)."""
    found = {}
    for name, about in config.items():
        ranks = _ranks(about.get("ranks")) if name and isinstance(about, dict) else ()
        if ranks:
            found[str(name)] = ranks
    return found


def _ranks(written: Any) -> tuple[int, ...]:
    """The ranks that pg_config names: a text that looks like a list, or a list."""
    if isinstance(written, list | tuple):
        return tuple(whole(rank) for rank in written[:MOST_RANKS])
    return _ranks_in(written) if isinstance(written, str) else ()


@lru_cache(maxsize=4096)
def _ranks_in(written: str) -> tuple[int, ...]:
    """Every rank of a job writes the same text, of 60 KB at 10,000 ranks: it is parsed once, and the ranks share the result."""
    return tuple(int(word) for word in _NUMBER.findall(written[: 10 * MOST_RANKS]))


def _written_ns(path: Path) -> int:
    """When a file was written, wall clock: copying can only make that later."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
