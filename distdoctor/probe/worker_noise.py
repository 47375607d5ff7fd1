"""Which random state each DataLoader worker begins an epoch with, and which generators its samples draw from.

Workers record nothing themselves: they are forked copies of the rank in which the probe is silent. Each leaves 40 bytes in memory
that it shares with the rank, and the rank writes them down. Only states are read, nothing is drawn, and only around the first
two batches of a pass; afterwards the fetcher is torch's own again. Spawned workers share no memory with the rank: unseen.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import random
import struct
import sys
from array import array
from collections import deque
from typing import Any

import torch
from torch.utils.data import dataloader, get_worker_info

from distdoctor.probe import wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.tape import Tape
from distdoctor.recording.layout import NOISE_SOURCES, EventKind

PASSES = 8  # of one rank whose workers are looked at
WORKERS = 16  # of one loader
BATCHES = 2  # of one worker
ATTRIBUTES = 64  # of a data set, among which its own generators are looked for
_SLOT = struct.Struct("<BB6x4Q")  # batches looked at, generators drawn from (a bit each), digests of the states before


class WorkerNoise:
    """The slots of all workers, in memory that survives a fork as the same memory."""

    def __init__(self, rank: Rank, tape: Tape) -> None:
        self.rank, self.tape = rank, tape
        self.memory = mmap.mmap(-1, _SLOT.size * PASSES * WORKERS)
        self.number = -1  # of the iterator that is being made
        self.count = 0
        self.waiting: deque[tuple[int, Any, int]] = deque()  # (number, pass, workers), not written down yet

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
            left = [self._read(number, worker) for worker in range(min(max(workers, 1), WORKERS))]
            if all(batches >= BATCHES for batches, _, _ in left) or last or one.ended:
                self._event(one.seq, workers, left)
            else:
                self.waiting.append((number, one, workers))

    def _event(self, seq: int, workers: int, left: list[tuple[int, int, tuple[int, ...]]]) -> None:
        drawn = 0
        for _, sources, _ in left:
            drawn |= sources
        if drawn:
            words = ";".join(
                f"{sources}," + ",".join(f"{digest:x}" for digest in digests) for _, sources, digests in left
            )
            self.tape.event(EventKind.WORKER_NOISE, words, a=seq, b=workers)

    def _read(self, number: int, worker: int) -> tuple[int, int, tuple[int, ...]]:
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
            before = _states(dataset)
            try:
                return original(index)
            finally:
                left[0] -= 1
                if not before or not self._leave(at, before, _states(dataset)) or left[0] <= 0:
                    fetcher.__dict__.pop("fetch", None)

        fetcher.fetch = fetch

    def _leave(self, at: int, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        """Put a batch's states where the rank finds them; False when they could not be read."""
        if not after:
            return False
        batches, drawn, *digests = _SLOT.unpack_from(self.memory, at)
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            drawn |= (one != other) << number
        _SLOT.pack_into(self.memory, at, batches + 1, drawn, *(digests if batches else before))
        return True


def _states(dataset: Any) -> tuple[int, ...]:
    """Digests of the states of torch's, Python's and NumPy's default generators, and of generators that the data set holds.

    Never raises: () when they cannot be read, which ends the look.
    """
    try:
        return _digests(dataset)
    except Exception:
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


def install(rank: Rank, tape: Tape) -> WorkerNoise:
    """Watch the fetchers of every loader from now on."""
    assert len(NOISE_SOURCES) == 4
    noise = WorkerNoise(rank, tape)
    pid = os.getpid()

    def creating(original: Any) -> Any:
        def create_fetcher(kind: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            fetcher = original(kind, dataset, *args, **kwargs)
            if kind == dataloader._DatasetKind.Map and not (rank.silent and os.getpid() == pid):
                try:
                    noise.watch(fetcher, dataset)
                except Exception:
                    fetcher.__dict__.pop("fetch", None)
            return fetcher

        return create_fetcher

    wrappers.lay(dataloader._DatasetKind, "create_fetcher", creating)
    return noise
