"""Iterable data of which a worker of one rank yields what a worker of another does, though the ranks' streams differ."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.data.iterable_data import LEAST_BATCHES
from distdoctor.diagnosis.data.samples import Indices, LoaderPass, SampleOrders, Together
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.recording.trace.layout import PassFlag

Worker = tuple[int, int]  # rank, and the worker's number on it


@dataclass(frozen=True, eq=False)
class SameWorkers:
    """`streams`: the workers of each stream that several ranks read, the most first. `batches`: how many were compared."""

    passes: Together
    replicas: ReplicaSet
    streams: tuple[tuple[Worker, ...], ...]
    batches: int

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for workers in self.streams for rank, _ in workers}))


def same_workers(orders: SampleOrders, replicas: Replicas) -> Iterator[SameWorkers]:
    """Sets of training passes of replicas in which workers of several ranks yield one stream. Ranks that read all the same
    count as one: they may be meant to."""
    for together in orders.together():
        for known in replicas.sets:
            passes = together.among(known.ranks)
            in_turns = all(map(_asks_in_turns, passes.passes.values()))
            if not together.trains or not in_turns or not _were_averaged(passes, orders, replicas):
                continue
            workers = _by_worker(passes)
            wholes = _wholes(workers)
            streams = [stream for stream in _alike(workers) if len({wholes[rank] for rank, _ in stream}) > 1]
            if streams:
                streams.sort(key=lambda stream: (-len(stream), stream))
                yield SameWorkers(passes, known, tuple(streams), min(_compared(workers, one) for one in streams))


def _were_averaged(passes: Together, orders: SampleOrders, replicas: Replicas) -> bool:
    """Whether ranks exchanged anything while they went through these passes. One that was left by a `break` has no end on record:
    it was over when its rank began another pass, if not before."""
    for rank, one in passes.passes.items():
        later = [other.started_ns for other in orders.by_rank[rank] if other.started_ns > one.started_ns]
        until = one.ended_ns or min(later, default=sys.maxsize)
        if replicas.have_talked(rank, one.started_ns, until):
            return True
    return False


def _asks_in_turns(one: LoaderPass) -> bool:
    """torch asks the workers in turns, so the batches of each can be told apart."""
    return bool(one.flags & PassFlag.ITERABLE) and not one.flags & PassFlag.UNORDERED


def _by_worker(passes: Together) -> dict[Worker, Indices]:
    """The first samples of the batches of each worker, in order; without workers all are of number 0."""
    return {
        (rank, worker): one.first[worker :: max(1, one.workers)]
        for rank, one in passes.passes.items()
        for worker in range(max(1, one.workers))
    }


def _wholes(workers: Mapping[Worker, Indices]) -> dict[int, bytes]:
    """rank -> what all its workers begin with: equal on ranks that read the same."""
    found: dict[int, bytes] = defaultdict(bytes)
    for (rank, _), stream in workers.items():
        found[rank] += _beginning(stream)
    return found


def _beginning(stream: Indices) -> bytes:
    return stream[:LEAST_BATCHES].tobytes()


def _alike(workers: Mapping[Worker, Indices]) -> Iterator[tuple[Worker, ...]]:
    """The workers whose streams agree as far as both are known, in at least `LEAST_BATCHES` different batches."""
    begun_alike: dict[bytes, list[Worker]] = defaultdict(list)
    for worker, stream in workers.items():
        if len(stream) >= LEAST_BATCHES and stream.all():  # 0: it could not be read
            begun_alike[_beginning(stream)].append(worker)
    for first, *others in begun_alike.values():
        same = [first, *(other for other in others if _agree(workers[first], workers[other]))]
        if len(same) > 1:
            yield tuple(same)


def _agree(one: Indices, other: Indices) -> bool:
    n = min(len(one), len(other))
    return bool(np.array_equal(one[:n], other[:n])) and len(np.unique(one[:n])) >= LEAST_BATCHES


def _compared(workers: Mapping[Worker, Indices], stream: tuple[Worker, ...]) -> int:
    n = min(len(workers[worker]) for worker in stream)
    return len(np.unique(workers[stream[0]][:n]))
