"""Many flight recorder dumps, read by many processes: those of this machine, or whichever a `concurrent.futures.Executor` has.

Each batch of files becomes a part, some 30 KB a rank, and the parts become one recording. It is the same whoever read them.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from distdoctor.errors import CouldNotLook, NothingToInspect, UnreadableRecording
from distdoctor.recording.flight.dumps import rank_in, read_dump
from distdoctor.recording.flight.entries import FlightDump
from distdoctor.recording.flight.rows import DumpPart, recording_of_parts
from distdoctor.recording.garbage import without_garbage_collection
from distdoctor.recording.recording import Recording, Trouble

MOST_BYTES = 400 << 20  # of memory, for a process that reads dumps
MOST_BYTES_AFAR = 2 << 30  # the same where they come from a store: its library and what is on the way count
LEAST_SECONDS, SECONDS_PER_DUMP = 4, 0.1  # of a processor: ten times what a dump of 2,000 entries with stacks takes
_PR_SET_PDEATHSIG = 1
MOST_OF_A_BATCH = 128  # dumps that are read before they are handed on: what a process holds at once
DUMPS_PER_PROCESS = 32  # a dump takes 10 ms, a process 50 ms to start
Part = tuple[DumpPart, list[Trouble]]


class DumpBatch(Protocol):
    """Some dump files, wherever they lie, that one process reads: it is pickled to where that process runs."""

    def __len__(self) -> int: ...

    def dumps(self, troubles: list[Trouble]) -> Iterator[FlightDump]:
        """The dumps, one after the other; what cannot be read becomes a trouble."""


@dataclass(frozen=True)
class FilesHere:
    """Dump files on this machine, or where all machines see them."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def dumps(self, troubles: list[Trouble]) -> Iterator[FlightDump]:
        for path in self.paths:
            try:
                yield read_dump(path)
            except UnreadableRecording as trouble:
                troubles.append(trouble_of(trouble, rank_in(path.name)))


def trouble_of(error: UnreadableRecording, rank: int | None) -> Trouble:
    """What one file that cannot be read means for its rank."""
    return Trouble(f"{error}. {error.way_out}", -1 if rank is None else rank)


def read_dumps(paths: Iterable[Path], executor: Executor | None = None) -> Recording:
    """The recording in dump files, in whatever order they come. Files that cannot be read become troubles.

    `executor` reads them; without one as many processes as there are CPUs do, where that is worth it.

    NothingToInspect: there is no file. UnreadableRecording: none of them is a dump. CouldNotLook: the executor failed.
    """
    files = sorted(paths)
    workers = max(1, min(len(os.sched_getaffinity(0)), len(files) // DUMPS_PER_PROCESS))
    size = max(1, min(math.ceil(len(files) / (4 * workers)), MOST_OF_A_BATCH))
    batches = [FilesHere(tuple(files[at : at + size])) for at in range(0, len(files), size)]
    if executor is not None:
        return read_batches(batches, executor)
    if not files or not may_fork():
        return read_batches(batches)
    with reading_processes(workers) as pool:
        return read_batches(batches, pool)


def may_fork() -> bool:
    """Whether this process may have children of its own kind: a fork carries other threads' locks along, and a daemonic
    process may have none."""
    return threading.active_count() == 1 and not multiprocessing.current_process().daemon


@contextmanager
def reading_processes(workers: int, most_bytes: int = MOST_BYTES) -> Iterator[Executor]:
    """Processes of this machine that may take so much memory, and seconds of a processor by what they read. They are there at
    once, and end with this one."""
    processes = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(
        workers, mp_context=processes, initializer=_bounded, initargs=(os.getpid(), most_bytes)
    ) as pool:
        pool.submit(os.getpid)
        yield pool


def read_batches(
    batches: Sequence[DumpBatch], executor: Executor | None = None, read: Callable[[int], None] = lambda dumps: None
) -> Recording:
    """The recording in batches of dump files. `read` is told after each batch how many files have been read by then.

    Errors: see `read_dumps`.
    """
    troubles: list[Trouble] = []
    with without_garbage_collection():
        recording = recording_of_parts(_parts(batches, executor, troubles, read), troubles)
    if not recording.ranks and troubles:
        raise UnreadableRecording(troubles[0].what, way_out="No other dump is there.")
    if not recording.ranks:
        raise NothingToInspect(
            "there are no flight recorder dumps", way_out="Point at the folder with the dumps of all ranks."
        )
    return recording


def _parts(
    batches: Sequence[DumpBatch], executor: Executor | None, troubles: list[Trouble], read: Callable[[int], None]
) -> Iterator[DumpPart]:
    done = 0
    parts = map(part_of, batches) if executor is None else _of_executor(batches, executor)
    for batch, (part, found) in zip(batches, parts, strict=True):
        troubles += found
        done += len(batch)
        read(done)
        yield part


def _of_executor(batches: Sequence[DumpBatch], executor: Executor) -> Iterator[Part]:
    """The parts in the order of the batches, whoever was ready first."""
    dumps = sum(map(len, batches))
    try:
        yield from executor.map(part_of, batches)
    except (BrokenProcessPool, MemoryError) as broken:
        raise UnreadableRecording(
            f"a process that read {dumps} dumps was killed, or took more memory or time than any recorder's dumps do",
            way_out="Examine them one by one, and leave out the one that cannot be read.",
        ) from broken
    except Exception as trouble:
        words = (str(trouble).splitlines() or [""])[0][:200]
        raise CouldNotLook(
            f"{type(executor).__name__} could not read {dumps} dumps: {type(trouble).__name__}: {words}",
            way_out="Its workers need the same distdoctor, and must reach the dumps under the same paths.",
        ) from trouble


def part_of(batch: DumpBatch) -> Part:
    """What a batch holds: the work of one process."""
    troubles: list[Trouble] = []
    if _is_bounded:
        _grant(LEAST_SECONDS + math.ceil(SECONDS_PER_DUMP * len(batch)))
    with without_garbage_collection():
        return DumpPart.of(batch.dumps(troubles)), troubles


_is_bounded = False


def _bounded(parent: int, most_bytes: int) -> None:
    """A process that reads what somebody sent us: a few bytes can ask for any amount of memory or time, and they get none of
    ours. It ends with whoever started it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    global _is_bounded
    _is_bounded = True
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, in_use + most_bytes)


def _grant(seconds: int) -> None:
    """So many seconds of a processor more than it has had."""
    had = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(had.ru_utime + had.ru_stime) + seconds)


def _limit(which: int, wanted: int) -> None:
    _, hardest = resource.getrlimit(which)
    resource.setrlimit(which, (wanted if hardest == resource.RLIM_INFINITY else min(wanted, hardest), hardest))
