"""Loaders that were read once, into a list that every epoch goes through again: the shuffle of one epoch serves for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.data.repeated_orders import should_differ
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders
from distdoctor.diagnosis.source.kept_batches import loop_over_kept
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.layout import PassFlag

LEAST_BATCHES = 4
ROUNDS = 2.0  # through the list, at least, before it counts as gone through again


@dataclass(frozen=True, eq=False)
class KeptBatches:
    """The one pass over a loader that shuffles by epoch, the loop over the list of it, and how often that went through it."""

    kept: LoaderPass
    ranks: tuple[int, ...]
    loop: SourceLine
    rounds: float


def kept_batches(orders: SampleOrders, recording: Recording, sources: Mapping[str, str]) -> Iterator[KeptBatches]:
    """Every such loader, over all ranks that read it like that."""
    found: dict[tuple[str, str], list[KeptBatches]] = defaultdict(list)
    for rank, passes in orders.by_rank.items():
        for loader in orders.by_loader(rank).values():
            one, again = loader[0], any(other.trains for other in passes)
            if len(loader) > 1 or again or not _shuffled_once(one):
                continue
            rounds = _passes_after(recording.ranks[rank], one) / one.batches
            loop = loop_over_kept(sources, one.loop_line) if rounds >= ROUNDS else None
            if loop is not None:
                found[str(one.loop_line), str(one.made_line)].append(KeptBatches(one, (rank,), loop, rounds))
    for alike in found.values():
        ranks = tuple(sorted(rank for one in alike for rank in one.ranks))
        yield KeptBatches(alike[0].kept, ranks, alike[0].loop, min(one.rounds for one in alike))


def _shuffled_once(one: LoaderPass) -> bool:
    """Whether a sampler that shuffles anew with the epoch was read to its end before anything was trained."""
    plain = not one.flags & (PassFlag.ITERABLE | PassFlag.REPLACEMENT) and one.shuffles is True
    return plain and should_differ(one) and one.exhausted and not one.evaluates and one.batches >= LEAST_BATCHES


def _passes_after(log: RankTrace, one: LoaderPass) -> float:
    """How many backward passes the rank made after it, judged by the steps that are still on record."""
    if not len(log.steps):
        return 0.0
    return (int(log.steps["step"].max()) - one.first_step) * float(np.median(log.steps["micro_steps"]))
