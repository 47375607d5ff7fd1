"""What fills a device that is nearly full: its ranks, and the bytes of each kind at the highest point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.memory.memory import Memory, RankMemory, mib
from distdoctor.recording.recording import SourceLine

NEARLY_FULL = 0.85
"""Of the device's memory: below it there is room for a larger batch or model, and nothing needs to be said."""


@dataclass(frozen=True)
class Bound:
    """One rank whose device was nearly full. Bytes; `activations` is what the others leave of the peak."""

    rank: int
    ranks: int
    """How many ranks the job has."""
    peak: int
    capacity: int
    weights: int
    """Parameters and gradients."""
    optimizer: int
    activations: int
    site: SourceLine

    @property
    def by_what(self) -> str:
        """The largest of the three: `weights`, `optimizer` or `activations`."""
        return max(("weights", "optimizer", "activations"), key=lambda name: int(getattr(self, name)))

    @property
    def evidence(self) -> dict[str, object]:
        """The numbers by name."""
        return {
            "peak": self.peak,
            "capacity": self.capacity,
            "parameters_and_gradients": self.weights,
            "optimizer": self.optimizer,
            "activations": self.activations,
        }

    @property
    def why(self) -> str:
        """The sum, spelt out."""
        return (
            f"{mib(self.weights)} parameters and gradients + {mib(self.optimizer)} optimizer state + {mib(self.activations)} "
            f"activations and the rest = {mib(self.peak)} of {mib(self.capacity)}"
        )

    def sharded(self, size: int) -> int:
        """Bytes that this rank no longer holds when they are divided among all."""
        return size - size // self.ranks


def nearly_full(memory: Memory) -> Iterator[Bound]:
    """The ranks whose device's peak came near its capacity."""
    for rank in memory.each():
        peak, capacity = rank.most("peak"), rank.last("capacity")
        if rank.on_device and capacity and peak >= NEARLY_FULL * capacity:
            yield _bound(rank, peak, capacity, max(1, memory.recording.job.world_size or len(memory.ranks)))


def fullest(memory: Memory, by_what: str) -> tuple[Bound, tuple[int, ...]] | None:
    """The fullest rank of those that are filled by this, and all their numbers; None where there is none."""
    found = [bound for bound in nearly_full(memory) if bound.by_what == by_what]
    if not found:
        return None
    worst = max(found, key=lambda bound: bound.peak / bound.capacity)
    return worst, tuple(bound.rank for bound in found)


def _bound(rank: RankMemory, peak: int, capacity: int, ranks: int) -> Bound:
    weights = rank.most("parameters") + rank.most("gradients") + rank.most("buffers")
    state = rank.most("state")
    return Bound(rank.rank, ranks, peak, capacity, weights, state, max(0, peak - weights - state), rank.site)
