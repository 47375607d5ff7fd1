"""Iterable data: recognised by what came out, as there are no indices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders, Together, common_start
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.events import Loading
from distdoctor.recording.trace.layout import PassFlag

LEAST_SAMPLES = 32  # that came from every worker
WHOLE = 0.8  # of what came from one of them: where the last batches are left out, another sample is on each side
LEAST_BATCHES = 8  # whose first samples are compared, all of them different: 256 bits of agreement


@dataclass(frozen=True, eq=False)
class SameStream:
    """Replicas whose batches begin with the same samples, one batch after the other. `batches`: how many were compared."""

    passes: Together
    replicas: ReplicaSet
    batches: int


def same_streams(orders: SampleOrders, replicas: Replicas) -> Iterator[SameStream]:
    """Sets of training passes over iterable data in which two or more replicas were handed the same stream."""
    for together in orders.together():
        for known in replicas.sets:
            passes = list(together.among(known.ranks).passes.values())
            if not together.trains or not all(one.flags & PassFlag.ITERABLE for one in passes):
                continue
            same = [one for one in passes[1:] if _agree(passes[0], one) >= LEAST_BATCHES]
            if same:
                ranks = [passes[0].rank, *(one.rank for one in same)]
                batches = min(_agree(passes[0], one) for one in same)
                yield SameStream(together.among(ranks), known, batches)


def shared_state(same: SameStream, orders: SampleOrders, recording: Recording) -> Loading | None:
    """What the first of these ranks read last before the stream became the same, if all of them have read that file since each
    had a stream of its own; None where they have not."""
    own = {one.rank: one for one in same.passes.passes.values()}
    before = {rank: [e for e in orders.by_rank[rank] if e.trains and _goes_on_in(e, one)] for rank, one in own.items()}
    if not all(before.values()):
        return None
    last = [earlier[-1] for earlier in before.values()]
    if any(_agree(last[0], one) for one in last[1:]) or min(len(one.first) for one in last) < LEAST_BATCHES:
        return None
    read = {rank: _read_between(recording.ranks[rank], before[rank][-1], one) for rank, one in own.items()}
    common = set.intersection(*(set(events) for events in read.values()))
    first = read[min(read)]
    return next((first[path] for path in reversed(first) if path in common), None)


def _goes_on_in(earlier: LoaderPass, one: LoaderPass) -> bool:
    return (
        bool(earlier.flags & PassFlag.ITERABLE)
        and earlier.started_ns < one.started_ns
        and earlier.data.name == one.data.name
    )


def _read_between(log: RankTrace, earlier: LoaderPass, one: LoaderPass) -> dict[str, Loading]:
    loads = ((event.at_ns + log.monotonic_to_wall_ns, event) for event in log.noted(Loading))
    return {event.path: event for at_ns, event in loads if earlier.started_ns < at_ns < one.started_ns}


def _agree(one: LoaderPass, other: LoaderPass) -> int:
    """With how many different samples both passes begin alike; 0 when they part, or when too little was seen."""
    n = min(len(one.first), len(other.first))
    if not n or common_start(one, other) < n:
        return 0
    return len(np.unique(one.first[:n]))


def copies_in_workers(one: LoaderPass) -> int:
    """How many different batches came once from each worker; 0 when the workers' streams differ, or when too little was seen.

    torch asks the workers in turns: with W workers that yield one stream, each batch comes W times in a row.
    """
    if one.workers < 2 or not one.flags & PassFlag.ITERABLE or one.flags & PassFlag.UNORDERED:
        return 0
    rounds = one.first[: len(one.first) // one.workers * one.workers].reshape(-1, one.workers)
    distinct = len(np.unique(rounds[:, 0])) if len(rounds) else 0
    return distinct if distinct >= LEAST_BATCHES // 2 and bool((rounds == rounds[:, :1]).all()) else 0


def samples_of_every_worker(one: LoaderPass) -> int:
    """How many different samples each of the workers has yielded once, in whatever order; 0 when they are not nearly all of them,
    when one came twice from a worker, or when not all of the stream was seen: a part of it may be alike by chance."""
    size, workers = one.batch_size, one.workers
    told = PassFlag.ITERABLE | PassFlag.HASHED
    if workers < 2 or one.flags & told != told or one.flags & (PassFlag.UNORDERED | PassFlag.REPLACEMENT):
        return 0
    known = (one.batches - workers) * size < len(one.rows) <= one.batches * size  # each but of the last round
    if not one.exhausted or one.rows_one_in > 1 or not known:
        return 0
    rounds = len(one.rows) // (workers * size)
    turns = one.rows[: rounds * workers * size].reshape(rounds, workers, size)
    by_worker = [turns[:, number].ravel() for number in range(workers)]
    if any(len(np.unique(rows)) < len(rows) for rows in by_worker):
        return 0
    common = by_worker[0]
    for rows in by_worker[1:]:
        common = np.intersect1d(common, rows)
    return len(common) if len(common) >= max(LEAST_SAMPLES, WHOLE * rounds * size) else 0
