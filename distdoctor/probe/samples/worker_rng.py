"""Which random state each DataLoader worker begins an epoch with, and which generators its samples draw from.

Workers record nothing themselves. Each leaves 40 bytes in memory that it shares with the rank, and why it could not where
something of ours failed it; the rank writes them down.
Only states are read, nothing is drawn, and only around the first two batches of a pass; afterwards the fetcher is torch's own
again. Forked workers are copies of the rank and share its memory. Spawned ones (`spawn`, `forkserver`) begin anew: they learn of
a file in the run folder from the function that initialises them, which goes to them together with the user's own.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import dataloader, get_worker_info

from distdoctor.probe import wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.samples import generators
from distdoctor.probe.samples.generators import Reading
from distdoctor.probe.writer import TraceWriter, file_stem
from distdoctor.recording.trace.layout import RNG_SOURCES

PASSES = 8  # of one rank whose workers are looked at
WORKERS = 16  # of one loader
BATCHES = 2  # of one worker
_SLOT = struct.Struct("<BB6x4Q")  # batches looked at, generators drawn from (a bit each), digests of the states before
_OWN = 1 << RNG_SOURCES.index("dataset")
_REASON_BYTES = 120
_SLOT_BYTES = _SLOT.size + _REASON_BYTES
SLOTS_BYTES = _SLOT_BYTES * PASSES * WORKERS


class Slots:
    """What workers leave: one slot for each worker of each pass that is looked at."""

    def __init__(self, memory: mmap.mmap, number: int = -1) -> None:
        self.memory = memory
        self.number = number  # of the iterator that is being made; -1: it is not looked at

    def read(self, number: int, worker: int) -> tuple[int, int, tuple[int, ...]]:
        batches, drawn, *digests = _SLOT.unpack_from(self.memory, _SLOT_BYTES * (number * WORKERS + worker))
        return batches, drawn, tuple(digests)

    def reason(self, number: int, worker: int) -> str:
        """Why that worker was not looked at to the end; "" where nothing of ours failed."""
        at = _SLOT_BYTES * (number * WORKERS + worker) + _SLOT.size
        return self.memory[at : at + _REASON_BYTES].rstrip(b"\0").decode("utf-8", "replace")

    def failed(self, error: Exception, at: int) -> None:
        """Leave the reason in the slot at `at`. What another thread changes meanwhile is no bug of ours."""
        try:
            if not isinstance(error, RuntimeError):
                words = f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:_REASON_BYTES]
                self.memory[at + _SLOT.size : at + _SLOT.size + len(words)] = words
        except Exception as another:
            hand_on(another)

    def place(self) -> int:
        """Where the slot of this process begins; -1: it has none."""
        info = get_worker_info()
        worker = info.id if info is not None else 0
        return _SLOT_BYTES * (self.number * WORKERS + worker) if self.number >= 0 and worker < WORKERS else -1

    def watch(self, fetcher: Any, dataset: Any) -> None:
        """Look at the states before and after the first batches of this fetcher, in whatever process it is."""
        at = self.place()
        if at < 0:
            return
        if get_worker_info() is not None:
            self.number = -1  # of this worker's copy: what it reads in later epochs has no slot
        original, left = fetcher.fetch, [BATCHES]

        def fetch(index: Any) -> Any:
            before = self._look(dataset, at)
            try:
                return original(index)
            finally:
                left[0] -= 1
                if before is None or not self._leave(at, before) or left[0] <= 0:
                    fetcher.__dict__.pop("fetch", None)

        fetcher.fetch = fetch

    def _leave(self, at: int, before: _Look) -> bool:
        """Put what a batch began with where the rank finds it; False when that could not be read.

        Of the data set's own generators only those are told that the batch drew from, so that one which nobody uses, or which
        was seeded for this worker, does not hide another that was not.
        """
        try:
            batches, drawn, *digests = _SLOT.unpack_from(self.memory, at)
            own = [one for one in before.own if generators.drawn_from(one)]
            if own and not drawn & _OWN:
                digests[-1] = generators.digest(one.state for one in own)
            if not batches:
                digests[:-1] = [generators.digest([one.state]) for one in before.defaults]
            for number, one in enumerate(before.defaults):
                drawn |= generators.drawn_from(one) << number
            _SLOT.pack_into(self.memory, at, batches + 1, drawn | (_OWN if own else 0), *digests)
        except Exception as error:
            hand_on(error)
            self.failed(error, at)
            return False
        return True

    def _look(self, dataset: Any, at: int) -> _Look | None:
        """None when the states cannot be read, which ends the look."""
        try:
            return _Look(generators.read(generators.defaults()), generators.read(generators.held_by(dataset)))
        except Exception as error:
            hand_on(error)
            self.failed(error, at)
            return None


class WorkerRngWatch(Slots):
    """The slots of forked workers, in memory that survives a fork as the same memory, and those of spawned ones in a file."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        super().__init__(mmap.mmap(-1, SLOTS_BYTES))
        self.rank, self.trace = rank, trace
        self.count = 0
        self.waiting: deque[tuple[int, Any, int]] = deque()  # (number, pass, workers), not written down yet
        self.spawned: dict[int, Slots] = {}  # by the number of the iterator
        self._file: mmap.mmap | None = None
        self._failure_told = False
        self._path = os.path.join(rank.folder, f"{file_stem(trace.rank, trace.attempt)}.workers")

    def about_to_iterate(self) -> None:
        """An iterator is about to be made; its workers will be forked within."""
        self.number = self.count if self.count < PASSES else -1
        self.count += 1

    def begun(self, number: int, one: Any, workers: int) -> None:
        """The pass of the iterator with this number has begun."""
        if 0 <= number < PASSES:
            self.waiting.append((number, one, workers))

    def write(self, *, last: bool = False) -> None:
        """Write down what the workers have left. `last`: do not wait for those that have left nothing."""
        for _ in range(len(self.waiting)):
            number, one, workers = self.waiting.popleft()
            left = [self._slots_of(number).read(number, worker) for worker in range(min(max(workers, 1), WORKERS))]
            if all(batches >= BATCHES for batches, _, _ in left) or last or one.ended:
                self._tell_failure(number, len(left))
                self._event(one.seq, workers, left)
            else:
                self.waiting.append((number, one, workers))

    def _tell_failure(self, number: int, workers: int) -> None:
        """Note the first bug of ours that kept a worker from being looked at."""
        reasons = (self._slots_of(number).reason(number, worker) for worker in range(workers))
        reason = next(filter(None, reasons), "")
        if reason and not self._failure_told:
            self._failure_told = True
            self.trace.note_trouble(f"workers: random states were not read: {reason}")

    def _event(self, seq: int, workers: int, left: list[tuple[int, int, tuple[int, ...]]]) -> None:
        drawn = 0
        for _, sources, _ in left:
            drawn |= sources
        if not drawn:
            return
        for worker, (_, sources, digests) in enumerate(left):
            states = dict(zip(RNG_SOURCES, digests, strict=True))
            self.trace.workers.write(pass_seq=seq, worker=worker, drawn_from=sources, **states)

    def _slots_of(self, number: int) -> Slots:
        return self.spawned.get(number, self)

    def initialising(self, loader: Any) -> Spawned | None:
        """What spawned workers of this loader have to be initialised with; None for forked ones, or when none are looked at."""
        maps = loader._dataset_kind == dataloader._DatasetKind.Map
        if not maps or loader.num_workers <= 0 or self.count >= PASSES or not _spawns(loader.multiprocessing_context):
            return None
        try:
            self._file = self._file or _map(self._path, os.O_CREAT | os.O_EXCL)
        except OSError as error:
            hand_on(error)
            return None  # no room: such workers are not looked at
        self.spawned[self.count] = Slots(self._file, self.count)
        return Spawned(loader.worker_init_fn, self._path, self.count)


class Spawned:
    """Initialises a worker that shares no memory with its rank: as the user wants it, then for being looked at."""

    def __init__(self, init_fn: Any, path: str, number: int) -> None:
        self.init_fn, self.path, self.number = init_fn, path, number

    def __call__(self, worker: int) -> None:
        if self.init_fn is not None:
            self.init_fn(worker)
        try:
            _watch_fetchers(Slots(_map(self.path), self.number), lambda: True)
        except Exception as error:
            hand_on(error)  # else nobody looks at this worker


def _spawns(context: Any) -> bool:
    """Whether workers begin as new interpreters."""
    if context is not None:
        return bool(context.get_start_method() != "fork")
    method = multiprocessing.get_start_method(allow_none=True)  # asking without it would decide it
    return (method or multiprocessing.get_all_start_methods()[0]) != "fork"


def _map(path: str, flags: int = 0) -> mmap.mmap:
    """The slots in a file of the run folder."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        if flags:
            os.posix_fallocate(fd, 0, SLOTS_BYTES)
        return mmap.mmap(fd, SLOTS_BYTES)
    finally:
        os.close(fd)


class _Look(NamedTuple):
    """The generators before a batch: those of everybody, and those that the data set holds."""

    defaults: list[Reading]
    own: list[Reading]


def install(rank: Rank, trace: TraceWriter) -> WorkerRngWatch:
    """Watch the fetchers of every loader from now on."""
    assert len(RNG_SOURCES) == 4
    noise = WorkerRngWatch(rank, trace)
    pid = os.getpid()
    _watch_fetchers(noise, lambda: not (rank.silent and os.getpid() == pid))
    initialising = rank.guarded(noise.initialising)

    def making(original: Any) -> Any:
        def _get_iterator(loader: Any) -> Any:
            init_fn = initialising(loader)
            if init_fn is None:
                return original(loader)
            scope, own = loader.__dict__, loader.worker_init_fn
            scope["worker_init_fn"] = init_fn
            try:
                return original(loader)
            finally:
                scope["worker_init_fn"] = own

        return skipped(_get_iterator)

    wrappers.lay(dataloader.DataLoader, "_get_iterator", making)
    return noise


def _watch_fetchers(slots: Slots, wanted: Callable[[], bool]) -> None:
    """Have every fetcher of map-style data that is made from now on looked at."""

    def creating(original: Any) -> Any:
        def create_fetcher(kind: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            fetcher = original(kind, dataset, *args, **kwargs)
            if kind == dataloader._DatasetKind.Map and wanted():
                at = 0  # also where it is the place that cannot be told
                try:
                    at = max(slots.place(), 0)
                    slots.watch(fetcher, dataset)
                except Exception as error:
                    hand_on(error)
                    slots.failed(error, at)
                    fetcher.__dict__.pop("fetch", None)
            return fetcher

        return create_fetcher

    wrappers.lay(dataloader._DatasetKind, "create_fetcher", creating)
