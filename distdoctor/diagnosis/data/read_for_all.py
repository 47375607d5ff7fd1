"""Iterable data that one rank reads for all, and of which it takes its own rank's share only: the other shares are never read.

accelerate (and with it the HF Trainer) reads an IterableDataset on rank 0 and hands slices of its batches to the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.source.stream_shares import StreamShare, is_told_its_share, stream_share
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import PassFlag

ITERABLE = PassFlag.ITERABLE


@dataclass(frozen=True)
class ReadForAll:
    """`one`: the first such pass of the rank that reads. `ranks`: the replicas of one model, all of which train on it."""

    one: LoaderPass
    ranks: tuple[int, ...]
    share: StreamShare


def read_for_all(
    orders: SampleOrders, replicas: Replicas, recording: Recording, sources: Mapping[str, str]
) -> Iterator[ReadForAll]:
    """One for each loader of a model's replicas from which one of them alone draws in training."""
    for known in replicas.sets:
        passes = {rank: [one for one in orders.by_rank.get(rank, ()) if one.flags & ITERABLE] for rank in known.ranks}
        readers = [rank for rank, own in passes.items() if own]
        all_train = all(rank in recording.ranks and len(recording.ranks[rank].steps) for rank in known.ranks)
        if not known.proven or len(readers) != 1 or len(known.ranks) < 2 or not all_train:
            continue
        loaders = {str(one.made_line): one for one in reversed(passes[readers[0]])}
        for one in loaders.values():
            if not one.flags & PassFlag.STEPPED or is_told_its_share(sources, one.data.name):
                continue
            if share := stream_share(sources, one.data.name, one.made_line):
                yield ReadForAll(one, known.ranks, share)
