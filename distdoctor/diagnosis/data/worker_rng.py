"""With which random states the workers of a loader began, of those generators that its samples drew from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.layout import RNG_SOURCES


@dataclass(frozen=True)
class Worker:
    """One worker in one pass. `states`: digests by source, only of sources that were drawn from. Number 0 of a loader without
    workers is the rank itself."""

    number: int
    states: Mapping[str, int]

    def only(self, source: str) -> Worker:
        """The same worker, reduced to one source."""
        return Worker(self.number, {source: self.states[source]})


@dataclass(frozen=True)
class WorkerRng:
    """The fact: workers by (rank, seq of the pass)."""

    streams: ClassVar[frozenset[str]] = frozenset({"samples"})
    passes: Mapping[tuple[int, int], tuple[Worker, ...]]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """Nothing is there for data whose samples draw nothing: that is healthy, not unseen."""
        return cls(
            {(rank, seq): workers for rank, log in recording.ranks.items() for seq, workers in _passes(log).items()}
        )

    def workers(self, rank: int, seq: int) -> list[Worker]:
        """The workers of one pass that drew; none when nothing was drawn."""
        return [worker for worker in self.passes.get((rank, seq), ()) if worker.states]


def _passes(log: RankTrace) -> dict[int, tuple[Worker, ...]]:
    found: dict[int, list[Worker]] = {}
    for row in log.rows("workers"):
        drawn_from = int(row["drawn_from"])
        states = {name: int(row[name]) for place, name in enumerate(RNG_SOURCES) if drawn_from >> place & 1}
        found.setdefault(int(row["pass_seq"]), []).append(Worker(int(row["worker"]), states))
    return {seq: tuple(workers) for seq, workers in found.items()}
