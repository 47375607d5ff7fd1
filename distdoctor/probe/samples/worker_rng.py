"""Which random state each DataLoader worker begins an epoch with, and which generators its samples draw from.

Workers record nothing themselves. Each leaves 40 bytes in memory that it shares with the rank, and the rank writes them down.
Only states are read, nothing is drawn, and only around the first two batches of a pass; afterwards the fetcher is torch's own
again. Forked workers are copies of the rank and share its memory. Spawned ones (`spawn`, `forkserver`) begin anew: they learn of
a file in the run folder from the function that initialises them, which goes to them together with the user's own.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import multiprocessing
import os
import random
import struct
import sys
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader, get_worker_info

from distdoctor.probe import wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.writer import TraceWriter, file_stem
from distdoctor.recording.trace.layout import RNG_SOURCES

PASSES = 8  # of one rank whose workers are looked at
WORKERS = 16  # of one loader
BATCHES = 2  # of one worker
ATTRIBUTES = 64  # of a data set, among which its own generators are looked for
_SLOT = struct.Struct("<BB6x4Q")  # batches looked at, generators drawn from (a bit each), digests of the states before
SLOTS_BYTES = _SLOT.size * PASSES * WORKERS


class Slots:
    """What workers leave: one slot for each worker of each pass that is looked at."""

    def __init__(self, memory: mmap.mmap, number: int = -1) -> None:
        self.memory = memory
        self.number = number  # of the iterator that is being made; -1: it is not looked at

    def read(self, number: int, worker: int) -> tuple[int, int, tuple[int, ...]]:
        batches, drawn, *digests = _SLOT.unpack_from(self.memory, _SLOT.size * (number * WORKERS + worker))
        return batches, drawn, tuple(digests)

    def watch(self, fetcher: Any, dataset: Any) -> None:
        """Look at the states before and after the first batches of this fetcher, in whatever process it is."""
        info = get_worker_info()
        worker = info.id if info is not None else 0
        if self.number < 0 or worker >= WORKERS:
            return
        at = _SLOT.size * (self.number * WORKERS + worker)
        if info is not None:
            self.number = -1  # of this worker's copy: what it reads in later epochs has no slot
        original, left = fetcher.fetch, [BATCHES]

        def fetch(index: Any) -> Any:
            before, seeds = _states(dataset), _seeds(dataset)
            try:
                return original(index)
            finally:
                left[0] -= 1
                after = _states(dataset)
                if after and _seeds(dataset) != seeds:
                    after = (
                        *after[:-1],
                        before[-1],
                    )  # given another seed on the way: what it began with is never drawn from
                if not before or not self._leave(at, before, after) or left[0] <= 0:
                    fetcher.__dict__.pop("fetch", None)

        fetcher.fetch = fetch

    def _leave(self, at: int, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        """Put a batch's states where the rank finds them; False when they could not be read."""
        if not after:
            return False
        try:
            batches, drawn, *digests = _SLOT.unpack_from(self.memory, at)
            for number, (one, other) in enumerate(zip(before, after, strict=True)):
                drawn |= (one != other) << number
            _SLOT.pack_into(self.memory, at, batches + 1, drawn, *(digests if batches else before))
        except Exception as error:
            hand_on(error)
            return False
        return True


class WorkerRngWatch(Slots):
    """The slots of forked workers, in memory that survives a fork as the same memory, and those of spawned ones in a file."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        super().__init__(mmap.mmap(-1, SLOTS_BYTES))
        self.rank, self.trace = rank, trace
        self.count = 0
        self.waiting: deque[tuple[int, Any, int]] = deque()  # (number, pass, workers), not written down yet
        self.spawned: dict[int, Slots] = {}  # by the number of the iterator
        self._file: mmap.mmap | None = None
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
                self._event(one.seq, workers, left)
            else:
                self.waiting.append((number, one, workers))

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


def _states(dataset: Any) -> tuple[int, ...]:
    """Digests of the states of torch's, Python's and NumPy's default generators, and of generators that the data set holds.

    () when they cannot be read, which ends the look.
    """
    try:
        return _digests(dataset)
    except Exception as error:
        hand_on(error)
        return ()


def _digests(dataset: Any) -> tuple[int, ...]:
    held = itertools.islice(getattr(dataset, "__dict__", {}).values(), ATTRIBUTES)
    own = b"".join(map(_state_of, held))
    numpy = sys.modules.get("numpy")
    states = (
        torch.get_rng_state().numpy().tobytes(),
        _python_state(random.getstate()),
        repr(numpy.random.get_state(legacy=False)["state"]["pos"]).encode()
        + numpy.random.get_state(legacy=False)["state"]["key"].tobytes()
        if numpy is not None
        else b"",
        own,
    )
    return tuple(int.from_bytes(hashlib.blake2b(s, digest_size=8).digest(), "little") if s else 0 for s in states)


def _seeds(dataset: Any) -> tuple[int, ...]:
    """With what torch's generators that the data set holds were seeded; () when that cannot be read."""
    try:
        held = itertools.islice(getattr(dataset, "__dict__", {}).values(), ATTRIBUTES)
        return tuple(one.initial_seed() for one in held if isinstance(one, torch.Generator))
    except Exception as error:
        hand_on(error)
        return ()


def _python_state(state: tuple[Any, ...]) -> bytes:
    return array("I", state[1]).tobytes()


def _state_of(held: Any) -> bytes:
    """The state of a generator, b"" for anything else."""
    if isinstance(held, torch.Generator):
        return held.get_state().numpy().tobytes() if held.device.type == "cpu" else b""
    if type(held) is random.Random:
        return _python_state(held.getstate())
    if type(held).__module__.startswith("numpy.random"):
        bits = getattr(held, "bit_generator", None)
        return repr(bits.state).encode() if bits is not None else repr(held.get_state()).encode()
    return b""


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
                try:
                    slots.watch(fetcher, dataset)
                except Exception as error:
                    hand_on(error)
                    fetcher.__dict__.pop("fetch", None)
            return fetcher

        return create_fetcher

    wrappers.lay(dataloader._DatasetKind, "create_fetcher", creating)
