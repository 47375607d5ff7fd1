"""Read whatever a user points at: a run folder, a folder of flight recorder dumps, one dump, one trace, a job log, NCCL's RAS,
torchcomms' clog, copied stacks."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from os.path import exists, isdir, isfile  # without an error where a folder may not be entered, or a name is too long
from pathlib import Path
from typing import Any, BinaryIO

from distdoctor.errors import NothingToInspect, UnreadableRecording
from distdoctor.recording.beside_dumps import beside_a_log
from distdoctor.recording.bundle import bundles_in, looks_like_bundle
from distdoctor.recording.files import head_of
from distdoctor.recording.flight.clog import begins_like_clog, looks_like_clog, read_clog_stream, read_clogs
from distdoctor.recording.flight.dumps import looks_like_dump, rank_in
from distdoctor.recording.flight.reading import read_dumps
from distdoctor.recording.job_log import read_log, read_log_stream, read_logs
from distdoctor.recording.ras import begins_like_ras, looks_like_ras, read_ras, read_ras_stream
from distdoctor.recording.recording import Recording
from distdoctor.recording.source_texts import with_sources
from distdoctor.recording.stack_files import (
    HEAD_BYTES,
    begins_like_stacks,
    looks_like_stacks,
    read_stack_stream,
    read_stacks,
    went_on,
    with_stacks,
)
from distdoctor.recording.trace.layout import MAGIC
from distdoctor.recording.trace.run_folder import bytes_here, is_run_folder, read_run, recorded_streams

RUNS = Path(".distdoctor") / "runs"
_LOGS = (".log", ".txt", ".out", ".err")
_DEEPEST_LOG = 5  # torchrun's --log-dir: host, run, attempt, local rank
_DEEPEST = 3  # folders below the one given: dumps are often copied into one folder per host
_DEEPEST_PART = 16  # the same of run folders and bundles, which lie below a folder for each job, host or day


def open_run(
    folder: Path,
    sources: Mapping[str, str] | None = None,
    *,
    only: frozenset[str] | None = None,
    attempt: int | None = None,
    ranks: Container[int] | None = None,
    bytes_of: Callable[[Path], bytes] = bytes_here,
) -> Recording:
    """What lies in a run folder, as everybody sees it: with the user's sources, and the streams that the launcher noted as
    recorded; without any rank no stream was. `sources`: those that are known from a read before. `only`: the sections of the
    traces that are read, all where it is None. `attempt`: which start of the ranks, the newest when None. `ranks`: those whose
    traces are read, all where it is None. `bytes_of` reads one.

    NothingToInspect: the folder holds no recording at all.
    """
    recording = read_run(folder, only=only, attempt=attempt, ranks=ranks, bytes_of=bytes_of)
    if sources:
        recording = replace(recording, sources={**recording.sources, **sources})
    noted = recorded_streams(folder) if recording.ranks else frozenset()
    return replace(with_sources(recording), streams=recording.streams if noted is None else noted)


def read_any(path: Path, executor: Executor | None = None) -> Recording:
    """The recording at `path`, by what lies there rather than by its name. `executor` reads dumps where they are many.

    NothingToInspect: nothing that distdoctor can read. UnreadableRecording: it is one, and broken.
    """
    if isdir(path):
        return _folder(path, executor)
    if str(path) == "-":
        return _standard_input()
    if not exists(path):
        raise NothingToInspect(
            f"no such file or folder: {path}", way_out="Point at a run folder, flight recorder dumps, or a job log."
        )
    if not isfile(path):
        raise NothingToInspect(
            f"{path} is no regular file",
            way_out="Give a file or a folder, or send it by the standard input: examine -.",
        )
    if _is_trace(path):
        return open_run(path.parent)
    if looks_like_ras(path):
        return _with_output(read_ras(path), path)
    if looks_like_dump(path):
        return read_dumps([path])
    if looks_like_clog(path):
        return read_clogs([path])
    if looks_like_stacks(path):
        return read_stacks([path])
    return read_log(path)


def _standard_input() -> Recording:
    """What comes by the standard input, by how it begins: clog of torchcomms, NCCL's RAS, stacks, else the log of a job."""
    head = sys.stdin.buffer.read(HEAD_BYTES)
    stream = io.BufferedReader(_Begun(head, sys.stdin.buffer))
    if begins_like_clog(head):
        return read_clog_stream(stream)
    if begins_like_ras(head):
        return read_ras_stream(stream)
    if begins_like_stacks(head):
        return read_stack_stream(stream)
    return read_log_stream(stream)


class _Begun(io.RawIOBase):
    """A stream whose first bytes have been read."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        given = self._head[: len(into)] or self._rest.read(len(into))
        self._head = self._head[len(given) :]
        into[: len(given)] = given
        return len(given)


def _folder(folder: Path, executor: Executor | None) -> Recording:
    for candidate in (folder, folder / "latest", folder / RUNS / "latest"):
        if isdir(candidate) and is_run_folder(candidate):
            return open_run(candidate)
    dumps = [path for path in _files(folder, _DEEPEST) if rank_in(path.name) is not None and looks_like_dump(path)]
    stacks, answers = stack_files_in(folder), ras_answers_in(folder)
    logs = _logs_in(folder, {*dumps, *stacks, *answers})
    if dumps:
        return _with_stacks(_with_log(read_dumps(dumps, executor), folder, logs), stacks, logs)
    if clogs := [path for path in _files(folder, _DEEPEST) if looks_like_clog(path)]:
        return _with_stacks(read_clogs(clogs), stacks)
    if answers and not logs:
        return _with_stacks(read_ras(*answers), stacks)
    if logs:
        return _beside(_logs_of(folder, logs, stacks), answers)
    if stacks:
        return read_stacks(stacks)
    raise NothingToInspect(
        f"{folder} holds no recording, no flight recorder dumps, no clog of torchcomms, no stacks of py-spy or faulthandler, no "
        "answers of NCCL's RAS and no job log",
        way_out="Point at a run folder (.distdoctor/runs/latest), at dumps whose names end in the rank, at the clog files of "
        "all ranks, at what `py-spy dump --pid PID` printed of each rank, at a log, or at a folder with the logs of one job.",
    )


def stack_files_in(place: Path) -> list[Path]:
    """The files that hold stacks at a place: the file itself, or those in a folder that holds no recording."""
    if isfile(place):
        return [place] if looks_like_stacks(place) else []
    return [] if is_run_folder(place) else [path for path in _files(place, _DEEPEST) if looks_like_stacks(path)]


def _with_stacks(recording: Recording, files: list[Path], logs: Sequence[Path] = ()) -> Recording:
    """A recording with the stacks that lie beside it, which a log may go on after; without them where nothing in the files is
    one."""
    try:
        seen = _seen_in(files, logs) if files else None
    except NothingToInspect:
        return recording
    return with_stacks(recording, seen) if seen is not None else recording


def _seen_in(files: list[Path], logs: Sequence[Path]) -> Recording:
    seen = read_stacks(files)
    return went_on(seen, logs[0], files) if len(logs) == 1 else seen


def _logs_in(folder: Path, others: Container[Path]) -> list[Path]:
    """The logs in a folder, by their names: all that is called so and none of the `others`."""
    return [
        path
        for path in _files(folder, _DEEPEST_LOG)
        if path.suffix in _LOGS and path not in others and not looks_like_ras(path)
    ]


def _log_in(folder: Path, logs: list[Path]) -> Recording:
    return read_log(logs[0]) if len(logs) == 1 else read_logs({str(path.relative_to(folder)): path for path in logs})


def _with_log(recording: Recording, folder: Path, logs: list[Path]) -> Recording:
    """The dumps with what the job's log beside them says of it."""
    try:
        return beside_a_log(recording, _log_in(folder, logs)) if logs else recording
    except (NothingToInspect, UnreadableRecording):
        return recording


def _logs_of(folder: Path, logs: list[Path], stacks: list[Path]) -> Recording:
    """What the logs of one job tell together, with the stacks beside them."""
    try:
        log = _log_in(folder, logs)
    except NothingToInspect:
        if not stacks:
            raise
        return _seen_in(stacks, logs)
    return _with_stacks(log, stacks, logs)


def _with_output(answer: Recording, path: Path) -> Recording:
    """What RAS answered, with what ranks have printed into the same file: a job that logs the answer goes on printing."""
    try:
        log = read_log(path)
    except (NothingToInspect, UnreadableRecording):
        return answer
    return replace(log, ras=answer.ras) if any(clue.rank >= 0 for clue in log.clues) else answer


def _beside(log: Recording, answers: list[Path]) -> Recording:
    """What a log or stacks tell, with what RAS answered of the same job."""
    return replace(log, ras=read_ras(*answers).ras) if answers else log


def ras_answers_in(place: Path) -> list[Path]:
    """The answers of NCCL's RAS at a place: the file itself, or those in a folder that holds no recording."""
    if isfile(place):
        return [place] if looks_like_ras(place) else []
    return [] if is_run_folder(place) else [path for path in _files(place, 0) if looks_like_ras(path)]


def parts_of(folder: Path, deepest: int = _DEEPEST_PART) -> list[Path]:
    """What below a folder is a part of a job's recording: run folders, host bundles, documents of hang-dump. None of them lies in
    another one. Of flight recorder dumps, which form one recording together, nothing is said here."""
    found: list[Path] = []
    for entry in _entries(folder):
        if isdir(entry):
            found += [entry] if is_run_folder(entry) else []
        elif looks_like_bundle(entry) or (entry.suffix == ".json" and bundles_in(entry)):
            found.append(entry)
    if found:
        return found
    if not deepest:
        return []
    return [part for entry in _entries(folder) if isdir(entry) for part in parts_of(entry, deepest - 1)]


def _entries(folder: Path) -> list[Path]:
    try:
        return [
            entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".") and not entry.is_symlink()
        ]
    except OSError:
        return []


def is_dump(path: Path) -> bool:
    """Whether a file is a flight recorder dump, by its name and its bytes."""
    return isfile(path) and rank_in(path.name) is not None and looks_like_dump(path)


def _files(folder: Path, deepest: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if isfile(entry):
            yield entry
        elif deepest and isdir(entry) and not entry.is_symlink() and not entry.name.startswith("."):
            yield from _files(entry, deepest - 1)


def _is_trace(path: Path) -> bool:
    return head_of(path, len(MAGIC)) == MAGIC
