"""A host bundle: what one host saw of a job, in one small file that can be copied, sent and put together with the others'.

It holds the newest records of each rank, how the ranks ended, and the stacks where somebody took them. It is read back as the
recording that it was made of, so the same checks run on it: there is no second way of judging.
"""

from __future__ import annotations

import base64
import binascii
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import head_of, read_bytes
from distdoctor.recording.recording import Job, RankTrace, Recording, Trouble
from distdoctor.recording.seen_live import SeenLive
from distdoctor.recording.stacks import Stacks
from distdoctor.recording.trace.layout import GOLDEN, RECORDS, STREAMS, extend
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.recording.trace.reader import Rows, dtype_of

MAGIC = b"DDBUNDLE"
VERSION = 4
READABLE = (3, VERSION)  # readers refuse another number
COMPRESSION = 3  # beyond it the memory that it takes grows, and the bundle hardly shrinks
LARGEST_BYTES = 1 << 30  # unpacked; beyond that somebody means harm
LARGEST_FILE = 256 << 20  # of one host: a bundle has some 10 KB a rank, a document of hang-dump a third more
# The newest rows of each section that travel; whoever needs more copies the run folder. Digests carry what is left out.
KEPT = {"calls": 256, "steps": 64, "times": 64, "blocks": 16, "tensors": 1 << 14}
KEPT_OF_OTHERS = 512
# Of what is recorded tensor by tensor, steps travel whole: half a step would make another tensor the first that differs.
WHOLE_STEPS = {"digests": 4}
IN_JSON = "bundle"  # the field of hang-dump's document
_MICROSECOND = 1000  # of times no more travels: the clocks of two hosts agree less well than that
# Times that follow another one of the same row: what travels is by how much.
_FOLLOWS = {
    "calls": {"returned_ns": "entered_ns"},
    "times": {"forward_ended_ns": "at_ns", "backward_ended_ns": "at_ns"},
}
_RUNNING_DIGESTS = ("prefix", "site_prefix")
_INVERSE = np.uint64(pow(GOLDEN, -1, 1 << 64))
_ALWAYS = ("calls", "groups", "steps", "events", "passes", "blocks")


class _Section(msgspec.Struct, array_like=True):
    rows: int
    stride: int
    columns: list[int]  # of each field in turn, the number of its bytes in `columns` of the bundle


class _Rank(msgspec.Struct):
    rank: int
    pid: int
    host: str
    attempt: int
    process: ProcessKey
    monotonic_to_wall_ns: int
    texts: list[int]  # numbers in `texts` of the bundle
    lost: dict[str, int]
    environment: int  # number in `environments` of the bundle
    sections: dict[str, _Section]


class _Trouble(msgspec.Struct):
    what: str
    rank: int
    silenced: list[str]
    fault: str = ""


class _Bundle(msgspec.Struct):
    """Ranks of one job run the same lines and hold the same weights: what several of them have is kept once, and what is alike
    (one field of one section, rank after rank) lies side by side, where the compression sees it."""

    job: Job
    ranks: list[_Rank]
    columns: list[bytes]
    texts: list[str]
    environments: list[dict[str, Any]]
    streams: list[str]
    troubles: list[_Trouble]
    stacks: Stacks | None = None
    seen_live: tuple[SeenLive, ...] = ()
    sources: dict[str, str] = {}


def pack(recording: Recording) -> bytes:
    """The bundle of a recording. Source texts stay at home where ranks recorded: whoever examines it has the files, and the
    digests say whether they are the same. Those of a job that only its stacks tell of have no digest, and travel."""
    troubles = [_Trouble(one.what, one.rank, sorted(one.silenced), one.fault) for one in recording.troubles]
    shared = _Shared()
    kept = [_kept(log) for log in recording.ranks.values()]
    sections = zip(recording.ranks.values(), kept, shared.sections(kept), strict=True)
    ranks = [_packed(log, rows, own, shared) for log, rows, own in sections]
    found = _Bundle(
        recording.job,
        ranks,
        list(shared.columns),
        list(shared.texts),
        [json.loads(one) for one in shared.environments],
        sorted(recording.streams),
        troubles,
        recording.stacks,
        recording.seen_live,
        {} if recording.ranks else dict(recording.sources),
    )
    return MAGIC + bytes([VERSION]) + lzma.compress(msgspec.msgpack.encode(found), preset=COMPRESSION)


class _Shared:
    """What is kept once, each with its number."""

    def __init__(self) -> None:
        self.columns: dict[bytes, int] = {}
        self.texts: dict[str, int] = {}
        self.environments: dict[str, int] = {}

    def sections(self, ranks: Sequence[Mapping[str, Rows]]) -> list[dict[str, _Section]]:
        """The sections of each rank, field by field."""
        found = [{name: _Section(len(rows), rows.dtype.itemsize, []) for name, rows in own.items()} for own in ranks]
        for name in dict.fromkeys(name for own in ranks for name in own):
            holding = [
                (into[name], _relative(name, own[name])) for into, own in zip(found, ranks, strict=True) if name in own
            ]
            for field in dtype_of(RECORDS[name]).names or ():
                for section, rows in holding:
                    section.columns.append(_number(self.columns, _written(rows[field])))
        return found


def _relative(name: str, rows: Rows) -> Rows:
    """The rows with what cannot be foretold only: times in microseconds, from the one that they follow; of a running digest the
    word that went into it, which for signatures is on record already."""
    found = rows.copy()
    for field in _times(rows.dtype):
        found[field] = rows[field] // _MICROSECOND
    for field, base in _FOLLOWS.get(name, {}).items():
        found[field] -= found[base]
    for field in _RUNNING_DIGESTS if name == "calls" else ():
        found[field] = _words_of(rows, field)
    if name == "calls":
        found["prefix"] ^= rows["signature"]
    return found


def _absolute(name: str, rows: Rows) -> None:
    """Put back what `_relative` took away."""
    for field, base in _FOLLOWS.get(name, {}).items():
        rows[field] += rows[base]
    for field in _times(rows.dtype):
        rows[field] *= _MICROSECOND
    if name == "calls":
        rows["prefix"] ^= rows["signature"]
    for field in _RUNNING_DIGESTS if name == "calls" else ():
        rows[field] = _digests_of(rows, field)


def _times(dtype: np.dtype[Any]) -> list[str]:
    return [field for field in dtype.names or () if field.endswith("_ns")]


def _words_of(rows: Rows, field: str) -> NDArray[np.uint64]:
    """What `extend` was given, row by row; each group has a digest of its own, and its first row is told from 0."""
    order = np.argsort(rows["group"], kind="stable")
    digests, groups = rows[field][order], rows["group"][order]
    before = np.where(np.diff(groups, prepend=groups[:1]) == 0, np.roll(digests, 1), np.uint64(0))
    before[:1] = 0
    words = np.empty(len(rows), np.uint64)
    words[order] = ((digests - np.uint64(1)) * _INVERSE) ^ before
    return words


def _digests_of(rows: Rows, field: str) -> list[int]:
    """The running digests of which `_words_of` tells the words."""
    latest: dict[int, int] = {}
    found = []
    for group, word in zip(rows["group"].tolist(), rows[field].tolist(), strict=True):
        latest[group] = extend(latest.get(group, 0), word)
        found.append(latest[group])
    return found


def _written(column: NDArray[Any]) -> bytes:
    """A field of all rows: of whole numbers what each adds to the one before; all lowest bytes first, then all next ones, ..."""
    unsigned, width = f"u{column.dtype.itemsize}", column.dtype.itemsize
    if column.ndim == 1 and column.dtype.kind in "iu":
        column = np.diff(column.view(unsigned), prepend=np.zeros(1, unsigned))
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8).reshape(-1, width).T.tobytes()


def _read(data: bytes, dtype: np.dtype[Any], rows: int) -> NDArray[Any]:
    """The field that `_written` wrote."""
    planes = np.frombuffer(data, np.uint8).reshape(dtype.base.itemsize, -1)
    column = np.ascontiguousarray(planes.T).view(dtype.base).reshape(rows, *dtype.shape)
    if not dtype.shape and dtype.kind in "iu":
        return np.cumsum(column.view(f"u{dtype.itemsize}"), dtype=f"u{dtype.itemsize}").view(dtype)
    return column


def _number(known: dict[Any, int], value: Any) -> int:
    return known.setdefault(value, len(known))


def _every_section(log: RankTrace) -> Iterator[tuple[str, Rows]]:
    yield from ((name, getattr(log, name)) for name in _ALWAYS)
    yield from log.more.items()


def _kept(log: RankTrace) -> dict[str, Rows]:
    """What travels of each section that has anything."""
    return {name: _newest(name, rows) for name, rows in _every_section(log) if len(rows)}


def _packed(log: RankTrace, kept: Mapping[str, Rows], sections: dict[str, _Section], shared: _Shared) -> _Rank:
    lost = dict(log.lost)
    for name, rows in _every_section(log):
        lost[name] = lost.get(name, 0) + len(rows) - len(kept.get(name, ()))
    return _Rank(
        log.rank,
        log.pid,
        log.host,
        log.attempt,
        log.process,
        log.monotonic_to_wall_ns,
        [_number(shared.texts, text) for text in log.texts],
        lost,
        _number(shared.environments, json.dumps(dict(log.environment), sort_keys=True)),
        sections,
    )


def _newest(name: str, rows: Rows) -> Rows:
    """The rows that travel."""
    most = KEPT.get(name, KEPT_OF_OTHERS)
    if name not in WHOLE_STEPS or not len(rows):
        return rows[-most:]
    begins = np.flatnonzero(np.diff(rows["step"], prepend=rows["step"][0] + 1))[-WHOLE_STEPS[name] :]
    fitting = begins[len(rows) - begins <= most]
    return rows[int(fitting[0] if len(fitting) else begins[-1]) :]


def looks_like_bundle(path: Path) -> bool:
    """Whether a file is a bundle, by its first bytes."""
    return head_of(path, len(MAGIC)) == MAGIC


def unpack(data: bytes, source: str) -> Recording:
    """The recording in a bundle; `source` names it in errors.

    UnreadableRecording: it is none, is damaged, or was written by a newer distdoctor.
    """
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC):
        raise UnreadableRecording(f"{source} is no host bundle", way_out="Make one with `distdoctor bundle -o FILE`.")
    version = data[len(MAGIC)]
    if version not in READABLE:
        raise UnreadableRecording(
            f"{source} was written by another distdoctor (format {version}, this one reads {READABLE[0]} to {VERSION})",
            way_out="Examine it with the version that wrote it, or install that one on all hosts.",
        )
    try:
        unpacker = zlib.decompressobj() if version == 3 else lzma.LZMADecompressor(memlimit=LARGEST_BYTES)
        raw = unpacker.decompress(data[len(MAGIC) + 1 :], LARGEST_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut off, or larger than 1 GiB")
        found = msgspec.msgpack.decode(raw, type=_Bundle)
        sections = (section for one in found.ranks for section in one.sections.values())
        if sum(section.rows * section.stride for section in sections) > LARGEST_BYTES:
            raise ValueError("its records would take more than 1 GiB")
        ranks = {one.rank: _unpacked(one, found, version) for one in found.ranks}
    except (zlib.error, lzma.LZMAError, EOFError, msgspec.MsgspecError, ValueError, IndexError) as trouble:
        raise UnreadableRecording(
            f"{source} is damaged: {trouble}", way_out="Copy it again; the other hosts can be examined without it."
        ) from trouble
    troubles = tuple(Trouble(one.what, one.rank, frozenset(one.silenced), one.fault) for one in found.troubles)
    streams = frozenset(found.streams) & STREAMS
    return Recording(
        found.job,
        dict(sorted(ranks.items())),
        streams,
        troubles,
        sources=found.sources,
        stacks=found.stacks,
        seen_live=found.seen_live,
    )


def _unpacked(one: _Rank, bundle: _Bundle, version: int) -> RankTrace:
    rows = {name: _rows(name, section, bundle) for name, section in one.sections.items() if name in RECORDS}
    for name, found in rows.items() if version > 3 else ():
        _absolute(name, found)
    always: dict[str, Any] = {name: rows.get(name, np.empty(0, dtype_of(RECORDS[name]))) for name in _ALWAYS}
    return RankTrace(
        rank=one.rank,
        texts=tuple(bundle.texts[number] for number in one.texts),
        lost=one.lost,
        pid=one.pid,
        host=one.host,
        attempt=one.attempt,
        process=one.process,
        monotonic_to_wall_ns=one.monotonic_to_wall_ns,
        environment=bundle.environments[one.environment],
        more={name: found for name, found in rows.items() if name not in _ALWAYS},
        **always,
    )


def _rows(name: str, section: _Section, bundle: _Bundle) -> Rows:
    """The records of a section; none where another layout wrote them.

    ValueError, IndexError: its columns are not all there.
    """
    dtype = dtype_of(RECORDS[name])
    fields = dtype.names or ()
    if section.stride != dtype.itemsize or len(section.columns) != len(fields):
        return np.empty(0, dtype)
    columns = [bundle.columns[number] for number in section.columns]
    if any(len(column) != section.rows * dtype[at].itemsize for at, column in enumerate(columns)):
        raise ValueError(f"a column of {name} has another length than the others")
    rows = np.empty(section.rows, dtype)
    for field, column in zip(fields, columns, strict=True):
        rows[field] = _read(column, dtype[field], section.rows)
    return rows


def read_bundle(path: Path) -> Recording:
    """The recording in a file that holds a bundle.

    UnreadableRecording: see `unpack`.
    """
    return unpack(read_bytes(path, LARGEST_FILE), str(path))


def in_json(recording: Recording) -> str:
    """The bundle as text, for a JSON document."""
    return base64.b64encode(pack(recording)).decode("ascii")


def bundles_in(path: Path) -> list[Recording]:
    """The recordings in a document of `hang-dump --json`, one for each job; [] where it is no such document."""
    try:
        text = read_bytes(path, LARGEST_FILE)
    except UnreadableRecording:
        return []
    return bundles_of(text, str(path))


def bundles_of(text: bytes, source: str) -> list[Recording]:
    """The same of the document's text; `source` names it in errors."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, Mapping) or not isinstance(document.get(IN_JSON), str):
        return []
    others = document.get("other_jobs", [])
    found: Iterable[Any] = [document, *others] if isinstance(others, list) else [document]
    return [_of_text(one[IN_JSON], source) for one in found if isinstance(one, Mapping) and IN_JSON in one]


def _of_text(text: str, source: str) -> Recording:
    try:
        return unpack(base64.b64decode(text, validate=True), source)
    except (binascii.Error, ValueError) as trouble:
        raise UnreadableRecording(f"{source} is damaged: {trouble}", way_out="Copy it again.") from trouble
