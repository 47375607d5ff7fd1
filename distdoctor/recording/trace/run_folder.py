"""A run folder: what one launch leaves behind, and how it is read back.

host-ID.json             one launcher: argv, world size, and how its ranks ended in each start (job.json in older folders)
rank-00003.a0.trace       what rank 3 did, first start (a1: after one restart)
rank-00003.a0.trace.memory-PID-FD-BOOT-NS-STARTED   there was no room: the trace is in the memory of that process
rank-00003.a0.json       its environment
rank-00003.a0.pass-12.drawn   which samples its record 12 of a pass stands for, where they are many
rank-00003.a0.state-0.json   what its training was made of when it began; 1-4: when it was saved
rank-00003.a0.sock       while it runs: where torch's flight recorder of the rank answers
probe-ID.json            what that launcher asks of the probe in its ranks
no-probe-PID.txt         why a process that should have been recorded is not
seen-ID.json             what was seen and said from outside while it ran: by its launcher, by hang-dump
comparison.json          gradients against a baseline, where they were compared
resumption.json, replay.json   what a resumed run drew and held, where it was compared with the uninterrupted one
rank-00003.a0.traceback.txt   its uncaught exception, if that is how it ended
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from os.path import exists, isdir
from pathlib import Path
from typing import Any

import msgspec

from distdoctor.errors import NothingToInspect, TornRecording, UnreadableRecording
from distdoctor.recording.comparison import FILE as COMPARISON
from distdoctor.recording.comparison import read_comparison
from distdoctor.recording.files import LARGEST_JSON, opened, read_bytes, read_json
from distdoctor.recording.recording import Job, RankTrace, Recording, Trouble
from distdoctor.recording.replay import FILE as REPLAY
from distdoctor.recording.replay import read_replay
from distdoctor.recording.resumption import FILE as RESUMPTION
from distdoctor.recording.resumption import read_resumption
from distdoctor.recording.seen_live import PREFIX, newest_stacks, of_attempt, read_seen_live
from distdoctor.recording.trace.bitmap_file import HEAD_BYTES, bit_bytes
from distdoctor.recording.trace.events import ProbeTrouble
from distdoctor.recording.trace.host_file import (
    PATTERN,
    EndFields,
    Exit,
    Ranks,
    ends_fields,
    ends_of,
    job_from,
    read_host_file,
    read_host_files,
)
from distdoctor.recording.trace.layout import MOST_RANKS, STREAMS
from distdoctor.recording.trace.process_key import ProcessKey, boot_id
from distdoctor.recording.trace.reader import LARGEST_BYTES, TraceReader, parse_trace, read_head
from distdoctor.recording.trace.sample_bitmap import kept_files

JOB_FILE = "job.json"
_SOCKET = re.compile(r"rank-(\d{1,9})\.a(\d{1,9})\.sock$", re.ASCII)
_END_ALONE = (
    "gradients",
    "memory",
    "checkpoints",
    "environment",
    "flight",
    "workers",
)  # their trouble ends nothing else
_TRACE = re.compile(
    r"rank-(\d{1,9})\.a(\d{1,9})\.trace(?:\.memory-(\d{1,9})-(\d{1,9})(?:-([0-9a-f]*)-(\d{1,18})(?:-(\d{1,18}))?)?)?$",
    re.ASCII,
)
_BESIDE = re.compile(
    r"(rank-\d{1,9}\.a\d{1,9}\.)(?:.*\.)?(json|drawn)$", re.ASCII
)  # environments, states, sets of samples
_LARGEST_BESIDE = {"json": LARGEST_JSON, "drawn": HEAD_BYTES + bit_bytes(1 << 32), "trace": LARGEST_BYTES}
MEMORY_FILE = "distdoctor"  # what the probe calls a trace in memory
LARGEST_NOTE = 64 << 10
MOST_NOTES = 64


def attempts(folder: Path) -> dict[int, dict[int, Path]]:
    """The traces of each start of the ranks, by its number: start -> rank -> trace."""
    found: dict[int, dict[int, Path]] = {}
    for path in entries(folder):
        match = _TRACE.match(path.name)
        if match and int(match[1]) < MOST_RANKS:
            found.setdefault(int(match[2]), {})[int(match[1])] = _where(path, match)
    return {number: dict(sorted(found[number].items())) for number in sorted(found)}


def entries(folder: Path) -> list[Path]:
    """What lies in a folder; nothing where it cannot be listed."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _where(path: Path, match: re.Match[str]) -> Path:
    """Where a trace lies. An empty file stands for one that is in a process's memory, which only that machine can read.

    Its name is not believed further than that: of any other file of that process we read nothing.
    """
    if not match[3]:
        return path
    writer = ProcessKey(int(match[3]), int(match[7] or 0), "", match[5] or boot_id(), int(match[6] or 0))
    memory = Path(f"/proc/{match[3]}/fd/{match[4]}")
    try:
        is_ours = writer.lives_here and os.readlink(memory).startswith(f"/memfd:{MEMORY_FILE} ")
    except OSError:
        return path
    return memory if is_ours else path


def trace_paths(folder: Path, attempt: int | None = None) -> dict[int, Path]:
    """The traces of one start over all ranks, by default of the newest: one attempt is never mixed with another."""
    found = attempts(folder)
    newest = newest_attempt(folder, found) if attempt is None else attempt
    return found.get(newest, {})


def newest_attempt(folder: Path, traces: Mapping[int, object]) -> int:
    """The number of the newest start that a rank or a launcher knows of."""
    return max(0, unused_attempt(folder, traces) - 1)


def unused_attempt(folder: Path, traces: Mapping[int, object] | None = None) -> int:
    """The number of the first start that nobody knows of, whichever job ran here before. `traces`: `attempts`, where known."""
    started = (number for host in read_host_files(folder) for number in host.starts)
    return max([*(attempts(folder) if traces is None else traces), *started], default=-1) + 1


def socket_paths(folder: Path) -> dict[int, Path]:
    """Where the flight recorder of each rank answers (of its last restart); of a rank that has ended nobody does."""
    newest: dict[int, tuple[int, Path]] = {}
    for path in entries(folder):
        match = _SOCKET.match(path.name)
        if match:
            newest[int(match[1])] = max(newest.get(int(match[1]), (-1, path)), (int(match[2]), path))
    return {rank: path for rank, (_, path) in sorted(newest.items())}


def bytes_here(path: Path) -> bytes:
    """What a trace holds.

    UnreadableRecording: it cannot be read.
    """
    return read_bytes(path, LARGEST_BYTES)


def read_run(
    folder: Path,
    *,
    only: frozenset[str] | None = None,
    attempt: int | None = None,
    ranks: Container[int] | None = None,
    bytes_of: Callable[[Path], bytes] = bytes_here,
) -> Recording:
    """The recording in a run folder. A trace that cannot be read becomes a trouble; the other ranks are still there.

    `attempt`: which start of the ranks, the newest when None. `ranks`: those whose traces are read, all where it is None.
    `bytes_of` reads a trace, wherever its bytes lie.

    NothingToInspect: the folder holds no recording at all.
    """
    found = attempts(folder)
    number = newest_attempt(folder, found) if attempt is None else attempt
    there = found.get(number, {})
    paths = {rank: path for rank, path in there.items() if ranks is None or rank in ranks}
    job = read_job(folder, number)
    if not found and job is None:
        raise NothingToInspect(
            f"{folder} holds no recording", way_out="Point at a run folder, by default .distdoctor/runs/latest."
        )
    logs: dict[int, RankTrace] = {}
    troubles: list[Trouble] = []
    comparison, resumption, replay = read_comparison(folder), read_resumption(folder), read_replay(folder)
    accounts = read_seen_live(folder)
    troubles += _damaged(folder, {COMPARISON: comparison, RESUMPTION: resumption, REPLAY: replay, **accounts})
    hosts = read_host_files(folder)
    digests = {name: digest for host in hosts for name, digest in host.digests.items()}
    to_be_sealed = bool(hosts) and not any(host.still_runs for host in hosts)
    beside = _companions(folder, paths.values())
    spoiled = {path for path in beside if digests.get(path.name, "") not in ("", digest_of(path))}
    troubles += (Trouble(f"{path} is damaged", fault="unreadable") for path in sorted(spoiled))
    troubles += _missing(folder, digests, paths.values(), {*accounts, *(path.name for path in beside)})
    sets = kept_files(folder, spoiled)
    for rank, path in paths.items():
        try:
            log = _rank_trace(folder, rank, path, bytes_of(path), only, digests.get(path.name, ""))
            lost = not hosts and _had_a_launcher(log)
            unsealed = (to_be_sealed or lost) and path.name not in digests
            logs[rank] = replace(log, drawn_sets=sets.get((rank, log.attempt), {}), unsealed=unsealed)
        except UnreadableRecording as trouble:
            fault = "torn" if isinstance(trouble, TornRecording) else "unreadable"
            troubles.append(Trouble(f"{trouble}. {trouble.way_out}", rank, fault=fault))
    end_unseen = not hosts and any(map(_had_a_launcher, logs.values()))
    whole = assemble(logs, job or Job(attempt=number, end_unseen=end_unseen), [*troubles, *_notes(folder)])
    seen = of_attempt(accounts.values(), number)
    looked = newest_stacks(seen) if not paths else None  # nobody recorded: the look from outside is all there is
    return replace(
        whole,
        comparison=comparison,
        resumption=resumption,
        replay=replay,
        seen_live=seen,
        stacks=looked.stacks if looked is not None else None,
        unread=frozenset(there.keys() - paths.keys()),
    )


def _had_a_launcher(log: RankTrace) -> bool:
    """Whether a launcher of ours, which numbers its starts, started the rank: its own file may have been left behind."""
    settings = log.environment.get("settings")
    return isinstance(settings, dict) and settings.get("attempt") is not None


def _rank_trace(
    folder: Path, rank: int, path: Path, data: bytes, only: frozenset[str] | None, digest: str
) -> RankTrace:
    """The trace of a rank. UnreadableRecording: it is torn, was changed after the job had ended, or is another rank's."""
    if digest and digest != digest_of_trace(data):
        raise TornRecording(
            f"{path} is damaged: it is not what the job left behind",
            way_out="Copy it again; the other ranks can be examined.",
        )
    trace = parse_trace(data, str(path), only=only)
    named = _TRACE.match(path.name)  # a trace in memory has another name
    if trace.head.rank != rank or (named and trace.head.attempt != int(named[2])):
        raise TornRecording(
            f"{path} is damaged: it says that it is of rank {trace.head.rank}, start {trace.head.attempt}",
            way_out="Copy it again under its own name.",
        )
    return log_of(trace, _environment(folder, rank, path))


def _notes(folder: Path) -> Iterator[Trouble]:
    """Why processes are not recorded, in their own words."""
    for note in sorted(folder.glob("no-probe-*.txt"))[:MOST_NOTES]:
        try:
            words = read_bytes(note, LARGEST_NOTE, from_end=True).decode("utf-8", "replace")[:500]
        except UnreadableRecording as trouble:
            words = str(trouble)
        yield Trouble(f"process {note.stem[9:]} is not recorded: {words}")


def digest_of_trace(data: bytes) -> str:
    """What a launcher notes of each trace when all ranks have ended, so that damage done later is seen."""
    return f"{zlib.crc32(data):08x}"


def digest_of(path: Path) -> str:
    """The same of any file, piece by piece. "": it cannot be read, or is larger than whatever we write under such a name."""
    digest = 0
    try:
        with opened(path) as file:
            left = os.fstat(file.fileno()).st_size  # a file that grows meanwhile is not followed
            if left > _LARGEST_BESIDE.get(path.suffix[1:], LARGEST_JSON):
                return ""
            while left > 0 and (piece := file.read(min(left, 1 << 20))):
                digest, left = zlib.crc32(piece, digest), left - len(piece)
    except (OSError, UnreadableRecording):
        return ""
    return f"{digest:08x}"


def seals_of(folder: Path) -> dict[str, str]:
    """The digests of what the ranks of this machine have left, for a launcher to note: their traces of every start, and what lies
    beside them. Not of a rank that still writes: another launcher has started it."""
    traces = [path for ranks in attempts(folder).values() for path in ranks.values()]
    own = [path for path in traces if _has_ended_here(path)]
    beside = _companions(folder, own)
    return {path.name: digest for path in (*own, *beside) if (digest := digest_of(path))}


def _has_ended_here(path: Path) -> bool:
    """Whether the writer of a trace was a process of this machine, and is none any more."""
    try:
        writer = read_head(path).process
    except UnreadableRecording:
        return False
    return writer.is_of_this_machine and not writer.runs_here


def _companions(folder: Path, traces: Iterable[Path]) -> list[Path]:
    """The files of these ranks and starts beside the traces that no check may find damaged: environments and sets of samples."""
    return [folder / name for name in _beside((path.name for path in entries(folder)), traces)]


def _beside(names: Iterable[str], traces: Iterable[Path]) -> list[str]:
    """Those of the names that companions of these traces have."""
    stems = {path.name.removesuffix("trace") for path in traces if path.name.endswith(".trace")}
    return [name for name in names if (match := _BESIDE.match(name)) is not None and match[1] in stems]


def _missing(folder: Path, noted: Iterable[str], traces: Iterable[Path], there: Container[str]) -> Iterator[Trouble]:
    """What launchers noted beside these traces, and of their own words, that is gone."""
    said = (name for name in noted if name.startswith(PREFIX))
    for name in sorted((*_beside(noted, traces), *said)):
        if name not in there:
            yield Trouble(f"{folder / name} is missing: the job had left it", fault="unreadable")


def _damaged(folder: Path, contents: Mapping[str, object]) -> Iterator[Trouble]:
    """What lies beside the traces and cannot be read."""
    contents = {**contents, JOB_FILE: _job_of_one_file(folder, 0) or _streams_alone(folder)}
    paths = [folder / name for name, content in contents.items() if content is None]
    paths += [path for path in sorted(folder.glob(PATTERN)) if read_host_file(path) is None]
    for path in paths:
        if os.path.lexists(path):
            yield Trouble(f"{path} is damaged", fault="unreadable")


def assemble(ranks: Mapping[int, RankTrace], job: Job, troubles: Iterable[Trouble] = ()) -> Recording:
    """A recording from its parts, with what the ranks themselves noted as trouble."""
    noted = [_fell_silent(rank, trouble.reason) for rank, log in ranks.items() for trouble in log.noted(ProbeTrouble)]
    return Recording(job=job, ranks=dict(sorted(ranks.items())), troubles=(*troubles, *noted))


def _fell_silent(rank: int, what: str) -> Trouble:
    """The probe's own note. Some streams end alone; any other trouble ends the whole recording of the rank."""
    alone = what.partition(":")[0]
    ended = frozenset({alone}) if alone in _END_ALONE else STREAMS
    return Trouble(f"the recorder of rank {rank} fell silent: {what}", rank, ended)


def log_of(trace: TraceReader, environment: Mapping[str, Any] | None = None) -> RankTrace:
    """A rank's log from its trace."""
    from distdoctor.recording.recording import no_rows

    names = ("calls", "groups", "steps", "events", "passes", "blocks")
    rows: dict[str, Any] = {name: trace.rows.get(name, no_rows(name)) for name in names}
    head = trace.head
    return RankTrace(
        rank=head.rank,
        texts=trace.texts,
        lost=dict(trace.lost),
        pid=head.pid,
        world_size=max(head.world_size, 0),
        host=head.host,
        process=head.process,
        attempt=head.attempt,
        monotonic_to_wall_ns=head.wall_ns - head.monotonic_ns,
        environment=environment or {},
        more={name: found for name, found in trace.rows.items() if name not in names},
        **rows,
    )


def _environment(folder: Path, rank: int, trace_path: Path) -> dict[str, Any]:
    match = _TRACE.match(trace_path.name)
    try:
        found = read_json(folder / f"rank-{rank:05d}.a{match[2] if match else 0}.json", LARGEST_JSON)
    except UnreadableRecording:
        return {}
    return found if isinstance(found, dict) else {}


def job_to_json(job: Job) -> str:
    """The text of `job.json`."""
    fields = {
        "argv": list(job.argv),
        "world_size": job.world_size,
        "running": job.running,
        "exit_code": job.exit_code,
        "launcher": job.launcher,
        "strategy": job.strategy,
        "ends": ends_fields(job.ends),
    }
    return json.dumps(fields, indent=1)


def read_job(folder: Path, attempt: int | None = None) -> Job | None:
    """The job as its launchers described it, None where none of them left a word that can be read.

    `attempt`: which start of its ranks, the newest when None.
    """
    job = job_from(read_host_files(folder), attempt)
    return job if job is not None else _job_of_one_file(folder, attempt or 0)


class _JobFields(msgspec.Struct):
    """`job.json`; a value that no launcher writes makes it damaged."""

    argv: list[str]
    world_size: Ranks
    running: bool
    exit_code: Exit | None
    launcher: str
    strategy: str
    ends: dict[Ranks, EndFields]
    streams: list[str] | None = None


def _job_of_one_file(folder: Path, attempt: int) -> Job | None:
    """As older recordings and the pytest plugin have it: one `job.json` for all."""
    try:
        fields = msgspec.convert(read_json(folder / JOB_FILE, LARGEST_JSON), _JobFields, str_keys=True)
    except (UnreadableRecording, msgspec.ValidationError):
        return None
    return Job(
        argv=tuple(fields.argv),
        world_size=fields.world_size,
        ends=ends_of(fields.ends),
        running=fields.running,
        exit_code=fields.exit_code,
        launcher=fields.launcher,
        strategy=fields.strategy,
        attempt=attempt,
    )


class _StreamsAlone(msgspec.Struct, forbid_unknown_fields=True):
    """`job.json` of ranks that record themselves, where some streams are left out: nobody launched them."""

    streams: list[str]


def _streams_alone(folder: Path) -> _StreamsAlone | None:
    try:
        return msgspec.convert(read_json(folder / JOB_FILE, LARGEST_JSON), _StreamsAlone)
    except (UnreadableRecording, msgspec.ValidationError):
        return None


def is_run_folder(folder: Path) -> bool:
    """Whether distdoctor recorded into this folder."""
    if not isdir(folder):
        return False
    return bool(attempts(folder)) or exists(folder / JOB_FILE) or any(folder.glob(PATTERN))


def recorded_streams(folder: Path) -> frozenset[str] | None:
    """What the launchers were told to record (`run --streams`); None: everything, or they did not say."""
    for host in read_host_files(folder):
        if host.streams is not None:
            return frozenset(host.streams)
    try:
        noted = read_json(folder / JOB_FILE, LARGEST_JSON).get("streams")
    except (UnreadableRecording, AttributeError):
        return None
    return frozenset(map(str, noted)) if isinstance(noted, list) else None
