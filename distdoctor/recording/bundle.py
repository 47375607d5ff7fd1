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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from distdoctor.errors import UnreadableRecording
from distdoctor.recording import earlier_bundles
from distdoctor.recording.alike_parts import (
    FILTERS,
    MEMORY,
    Pieces,
    brought_back,
    columns_apart,
    put_apart,
    settings_of,
    with_settings,
)
from distdoctor.recording.bundle_rows import COARSEST, quantum_of, restore, told
from distdoctor.recording.files import head_of, read_bytes
from distdoctor.recording.foreign_values import parse_json, require_few_values
from distdoctor.recording.held_rows import Alike, HeldMore, HeldRows, HeldTrace, hold
from distdoctor.recording.kept_steps import newest_steps, ranks_agree, spread_steps, steps_in_common
from distdoctor.recording.recording import Job, RankTrace, Recording, Trouble, no_rows
from distdoctor.recording.row_columns import Section, columns_of, read_sections, write_sections
from distdoctor.recording.sampler_order import left_out, put_back, require_foretold
from distdoctor.recording.seen_live import SeenLive
from distdoctor.recording.stacks import Stacks
from distdoctor.recording.trace.layout import MOST_RANKS, STREAMS, TensorFlag
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.recording.trace.reader import Rows

MAGIC = b"DDBUNDLE"
VERSION = 6
APART = 7  # the same, without what other hosts have as well: it lies in no file
READABLE = (3, 4, 5, VERSION)  # readers refuse another number
LARGEST_BYTES = 256 << 20  # unpacked, what foretold numbers leave; beyond that somebody means harm
MOST_NANOSECONDS = 1 << 62  # between two clocks of a host: 146 years
LARGEST_RANK = 8 << 20  # bytes of records; a trace has 4 MiB of them at most
LARGEST_FILE = 64 << 20  # of one host: a bundle has some 10 KB a rank, a document of hang-dump a third more
# The newest rows of each section that travel; whoever needs more copies the run folder. Digests carry what is left out.
KEPT = {"calls": 256, "steps": 64, "times": 64, "blocks": 16, "tensors": 1 << 14}
KEPT_OF_OTHERS = 512
# Of what is recorded of one step in 8, or in 128, so many of the newest steps travel, and as many of those before.
SAMPLED = {"updates": 16, "memory": 16, "holders": 16, "spots": 2}
# Of what is recorded tensor by tensor, steps travel whole: half a step would make another tensor the first that differs. Where
# the ranks of a host agree, the newest step that all of them looked at says what the others need to compare with.
WHOLE_STEPS = 4
IN_JSON = "bundle"  # the field of hang-dump's document
_ALWAYS = ("calls", "groups", "steps", "events", "passes", "blocks")


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
    sections: dict[str, Section]
    foretold: list[int] = []  # places in `blocks` of those whose draws `sampler_order` works out


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
    texts_apart: bytes = b""  # digests of what is cut out, see `alike_parts`
    columns_apart: dict[int, bytes] = {}
    environments_apart: list[bytes] = []
    quantum_ns: Annotated[int, msgspec.Meta(ge=0, le=COARSEST)] = 0  # of which all times are multiples


def pack(recording: Recording, apart: Pieces | None = None) -> bytes:
    """The bundle of a recording. What other hosts may have as well is put into `apart`, where it is given, and left out.

    Source texts stay at home where ranks recorded: whoever examines it has the files, and the
    digests say whether they are the same. Those of a job that only its stacks tell of have no digest, and travel."""
    troubles = [_Trouble(one.what, one.rank, sorted(one.silenced), one.fault) for one in recording.troubles]
    quantum = quantum_of(log.steps for log in recording.ranks.values())
    kept = _kept(recording)
    foretold = [_without_foretold(own) for own in kept]
    sections, columns = write_sections(
        [{name: told(name, rows, quantum) for name, rows in own.items()} for own in kept]
    )
    shared = _Shared()
    ranks = [
        _packed(log, own, section, places, shared)
        for log, own, section, places in zip(recording.ranks.values(), kept, sections, foretold, strict=True)
    ]
    found = _Bundle(
        recording.job,
        ranks,
        columns,
        list(shared.texts),
        [json.loads(one) for one in shared.environments],
        sorted(recording.streams),
        troubles,
        recording.stacks,
        recording.seen_live,
        {} if recording.ranks else dict(recording.sources),
        quantum_ns=quantum,
    )
    if apart is not None:
        _cut(found, sections, apart)
    packed = lzma.compress(msgspec.msgpack.encode(found), check=lzma.CHECK_CRC32, filters=FILTERS)
    return MAGIC + bytes([VERSION if apart is None else APART]) + packed


def _cut(bundle: _Bundle, sections: list[dict[str, Section]], apart: Pieces) -> None:
    """Leave out what others have as well."""
    bundle.texts_apart, bundle.texts = put_apart(bundle.texts, apart), []
    for number, environment in enumerate(bundle.environments):
        bundle.environments[number], alike = settings_of(environment)
        bundle.environments_apart.append(put_apart(alike, apart))
    places = columns_of(sections, "digests")
    bundle.columns, bundle.columns_apart = columns_apart(bundle.columns, places, apart)


def _join(bundle: _Bundle, piece: Callable[[bytes], bytes], alike: Alike) -> None:
    """Put back what was left out.

    ValueError, LZMAError, EOFError, MsgspecError, IndexError: it is not there, or damaged.
    """

    def back(digest: bytes, kind: Any) -> Any:
        if digest not in alike.values:
            alike.values[digest] = brought_back(digest, piece, kind)
        return alike.values[digest]

    bundle.texts = back(bundle.texts_apart, list[str])
    for number, digest in enumerate(bundle.environments_apart):
        settings = back(digest, dict[str, Any])
        bundle.environments[number] = with_settings(bundle.environments[number], settings)
    for at, digest in bundle.columns_apart.items():
        bundle.columns[at] = back(digest, bytes)


class _Shared:
    """What is kept once, each with its number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.environments: dict[str, int] = {}


def _number(known: dict[Any, int], value: Any) -> int:
    return known.setdefault(value, len(known))


def _every_section(log: RankTrace) -> Iterator[tuple[str, Rows]]:
    yield from ((name, getattr(log, name)) for name in _ALWAYS)
    yield from log.more.items()


def _kept(recording: Recording) -> list[dict[str, Rows]]:
    """What travels of each rank's sections that have anything."""
    logs = list(recording.ranks.values())
    in_common = steps_in_common([log.rows("digests") for log in logs if len(log.rows("digests"))])[-1:]
    agree = len(in_common) > 0 and ranks_agree(logs)
    found = [{name: _newest(name, rows) for name, rows in _every_section(log) if len(rows)} for log in logs]
    for own, log in zip(found, logs, strict=True):
        if "digests" in own:
            rows = log.rows("digests")
            wanted = np.isin(rows["step"], in_common) | _of_copies(log, rows) if agree else np.ones(len(rows), bool)
            own["digests"] = newest_steps(rows[wanted], WHOLE_STEPS, KEPT_OF_OTHERS)
    return found


def _of_copies(log: RankTrace, digests: Rows) -> Any:
    """Which digests are of copies of what is trained: these are compared with what they were at other steps."""
    tensors = log.rows("tensors")
    return np.isin(digests["tensor"], tensors["seq"][(tensors["flags"] & TensorFlag.COPY) != 0])


def _without_foretold(kept: dict[str, Rows]) -> list[int]:
    """Take the draws out that need not travel; the places of their blocks."""
    if "blocks" not in kept or "passes" not in kept:
        return []
    kept["blocks"], foretold = left_out(kept["passes"], kept["blocks"])
    return foretold


def _packed(
    log: RankTrace, kept: Mapping[str, Rows], sections: dict[str, Section], foretold: list[int], shared: _Shared
) -> _Rank:
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
        foretold,
    )


def _newest(name: str, rows: Rows) -> Rows:
    """The rows that travel."""
    newest = rows[-KEPT.get(name, KEPT_OF_OTHERS) :]
    return spread_steps(newest, SAMPLED[name]) if name in SAMPLED else newest


def looks_like_bundle(path: Path) -> bool:
    """Whether a file is a bundle, by its first bytes."""
    return head_of(path, len(MAGIC)) == MAGIC


def unpack(
    data: bytes, source: str, piece: Callable[[bytes], bytes] | None = None, alike: Alike | None = None
) -> Recording:
    """The recording in a bundle; `source` names it in errors. `piece(digest)` brings what was put apart, b"" where it is gone.
    `alike`: what bundles of other hosts of the job have as well, where several are read.

    UnreadableRecording: it is none, is damaged, or was written by a newer distdoctor.
    """
    alike = alike or Alike()
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC):
        raise UnreadableRecording(f"{source} is no host bundle", way_out="Make one with `distdoctor bundle -o FILE`.")
    version = data[len(MAGIC)]
    if version not in READABLE and (piece is None or version != APART):
        raise UnreadableRecording(
            f"{source} was written by another distdoctor (format {version}, this one reads {READABLE[0]} to {VERSION})",
            way_out="Examine it with the version that wrote it, or install that one on all hosts.",
        )
    try:
        unpacker = zlib.decompressobj() if version == 3 else lzma.LZMADecompressor(memlimit=MEMORY)
        raw = unpacker.decompress(data[len(MAGIC) + 1 :], LARGEST_BYTES)
        if not unpacker.eof:
            raise ValueError(f"it is cut off, or larger than {LARGEST_BYTES >> 20} MiB")
        require_few_values(raw)
        found = msgspec.msgpack.decode(raw, type=_Bundle)
        _require_plausible(found)
        if piece is not None and version == APART:
            _join(found, piece, alike)
        sections = (section for one in found.ranks for section in one.sections.values())
        if sum(section.rows * section.stride for section in sections) > LARGEST_RANK * len(found.ranks):
            raise ValueError(f"its records would take more than {LARGEST_RANK >> 20} MiB a rank")
        held = hold(_rows(found, version), alike)
        ranks = {one.rank: _unpacked(one, found, own, alike) for one, own in zip(found.ranks, held, strict=True)}
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


def _require_plausible(found: _Bundle) -> None:
    """ValueError: a number that is no rank's, as whoever lists those that are missing would fill the memory with them, or a clock
    that no 64 bits hold."""
    numbers = {found.job.world_size, *found.job.ends, *found.job.started}
    numbers |= {one.rank for one in found.ranks} | {one.rank for one in found.troubles}
    if found.stacks is not None:
        numbers |= {*found.stacks.ranks, *found.stacks.elsewhere}
    if max(numbers) > MOST_RANKS:
        raise ValueError(f"it names rank {max(numbers)}, and no job has more than {MOST_RANKS}")
    apart = max((abs(one.monotonic_to_wall_ns) for one in found.ranks), default=0)
    if apart > MOST_NANOSECONDS:
        raise ValueError(f"it says that two clocks of one host are {apart // 10**9} seconds apart")


def _rows(bundle: _Bundle, version: int) -> list[dict[str, Rows]]:
    """The rows of each rank's sections.

    ValueError, IndexError: they are not all there.
    """
    sections = [one.sections for one in bundle.ranks]
    if version < 5:
        return earlier_bundles.read_sections(sections, bundle.columns, version)
    found = read_sections(sections, bundle.columns)
    for one, own in zip(bundle.ranks, found, strict=True):
        for name, rows in own.items():
            restore(name, rows, bundle.quantum_ns)
        if one.foretold and "blocks" in own and "passes" in own:
            require_foretold(own["passes"], own["blocks"], one.foretold)
    return found


def _unpacked(one: _Rank, bundle: _Bundle, rows: dict[str, HeldRows], alike: Alike) -> RankTrace:
    if one.foretold and "blocks" in rows and "passes" in rows:
        passes, foretold = rows["passes"], one.foretold
        rows["blocks"] = rows["blocks"].finished_by(lambda blocks: put_back(passes.rows, blocks, foretold))
    always: dict[str, Any] = {name: rows.pop(name, None) or no_rows(name) for name in _ALWAYS}
    return HeldTrace(
        rank=one.rank,
        texts=alike.texts(tuple(bundle.texts[number] for number in one.texts)),
        lost=one.lost,
        pid=one.pid,
        host=one.host,
        attempt=one.attempt,
        process=one.process,
        monotonic_to_wall_ns=one.monotonic_to_wall_ns,
        environment=bundle.environments[one.environment],
        more=HeldMore(rows),
        **always,
    )


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
        document = parse_json(text)
    except ValueError:
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
