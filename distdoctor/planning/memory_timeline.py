"""Allocations in order, and what they add up to: the peak and what it consists of, at any batch size that was not traced too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers", "communication", "temporary")
HELD_BY_HOST = frozenset({"parameters", "gradients", "optimizer"})
"""What CPUOffloadPolicy keeps in host memory; the optimizer steps there, so its temporary tensors are there too."""
ROUNDING = 512
"""Bytes to which CUDA's caching allocator rounds (kMinBlockSize, c10/cuda/CUDACachingAllocator.h)."""


@dataclass(frozen=True)
class Peak:
    """The most bytes that one rank holds at one time, when, and of what; `host_bytes` besides, in host memory."""

    bytes: int
    phase: str
    categories: dict[str, int]
    host_bytes: int = 0

    @property
    def state_bytes(self) -> int:
        """What no smaller batch makes smaller."""
        return sum(self.categories[name] for name in ("parameters", "gradients", "optimizer", "buffers"))


@dataclass
class MemoryTimeline:
    """What one rank allocates in two training steps. All sizes in bytes.

    Event `i` changes the size of storage `owners[i]` by `deltas[i]` in phase `phases[i]`.
    """

    deltas: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Of each storage at present."""
    categories: list[str] = field(default_factory=list)
    """Of each storage."""
    fixed: set[int] = field(default_factory=set)
    """Storages whose size has a bound of its own, and does not grow with the batch."""
    flops: dict[str, int] = field(default_factory=dict)
    """Floating point operations (an addition and a multiplication are two) by phase, in the last step."""
    traffic: dict[str, int] = field(default_factory=dict)
    """Bytes of the tensors given to each kind of collective, in the last step."""

    parameters: int = 0
    """Of the whole model, counted when it was made."""
    parameter_bytes: int = 0
    """Of the parameters that this rank keeps."""

    def allocate(self, size: int, category: str, phase: str) -> int:
        """A new storage; returns its number."""
        number = len(self.sizes)
        self.sizes.append(0)
        self.categories.append(category)
        self.resize(number, size, phase)
        return number

    def resize(self, number: int, size: int, phase: str) -> None:
        """The storage has this size now; 0 when it is freed."""
        delta = size - self.sizes[number]
        if delta:
            self.sizes[number] = size
            self.deltas.append(delta)
            self.owners.append(number)
            self.phases.append(phase)

    def communicated(self, operation: str, size: int, phase: str) -> None:
        """This many bytes went into a collective."""
        if phase != "setup":
            self.traffic[operation] = self.traffic.get(operation, 0) + size

    def peak(self, *, offloaded: bool = False, rounded: bool = False, without: Collection[str] = ()) -> Peak:
        """The peak of the device, leaving the phases `without` out of account."""
        return peak_of(self, np.array(self.deltas, dtype=np.int64), offloaded, rounded, without)


@dataclass(frozen=True)
class ScaledTimeline:
    """Two timelines of one training that differ in the batch only: every size is a constant plus a multiple of the batch."""

    timeline: MemoryTimeline
    constant: NDArray[np.float64]
    per_sample: NDArray[np.float64]

    @classmethod
    def between(cls, small: MemoryTimeline, large: MemoryTimeline, batches: tuple[int, int]) -> ScaledTimeline | None:
        """None where the two did not allocate in the same order: then every batch has to be traced by itself."""
        if small.owners != large.owners or small.phases != large.phases or small.categories != large.categories:
            return None
        first, second = (np.array(timeline.deltas, dtype=np.float64) for timeline in (small, large))
        slope = (second - first) / (batches[1] - batches[0])
        slope[np.isin(small.owners, list(small.fixed))] = 0
        return cls(small, first - slope * batches[0], slope)

    def peak(
        self, batch: int, *, offloaded: bool = False, rounded: bool = False, without: Collection[str] = ()
    ) -> Peak:
        """The peak with this batch."""
        deltas = np.rint(self.constant + self.per_sample * batch).astype(np.int64)
        return peak_of(self.timeline, deltas, offloaded, rounded, without)


def peak_of(
    timeline: MemoryTimeline, deltas: NDArray[np.int64], offloaded: bool, rounded: bool, without: Collection[str]
) -> Peak:
    """The peak of these changes of size, in the timeline's order."""
    if rounded:
        deltas = np.sign(deltas) * (-(-np.abs(deltas) // ROUNDING) * ROUNDING)
    categories = np.array(timeline.categories)[timeline.owners]
    phases = np.array(timeline.phases)
    on_host = np.zeros(len(deltas), dtype=bool)
    if offloaded:
        born = dict(zip(reversed(timeline.owners), reversed(timeline.phases), strict=True))
        by_optimizer = np.array([born[owner] == "optimizer" for owner in timeline.owners])
        on_host = np.isin(categories, list(HELD_BY_HOST)) | ((categories == "temporary") & by_optimizer)
    held = np.cumsum(np.where(on_host, 0, deltas))
    counted = ~np.isin(phases, list(without))
    last = int(np.where(counted, held, -1).argmax())
    alive = (np.arange(len(deltas)) <= last) & ~on_host
    amounts = {name: int(deltas[alive & (categories == name)].sum()) for name in CATEGORIES}
    host = np.cumsum(np.where(on_host, deltas, 0))
    return Peak(int(held[last]), str(phases[last]), amounts, int(host[counted].max()) if offloaded else 0)
