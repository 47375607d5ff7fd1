"""The memory that the user says there will be, and the rank that needs most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.memory.memory import Memory, RankMemory, mib
from distdoctor.recording.recording import RankTrace, Recording


@dataclass(frozen=True)
class Budget:
    """`bytes` per rank, and what was measured."""

    streams: ClassVar[frozenset[str]] = Memory.streams | {"environment"}
    bytes: int
    memory: Memory

    @classmethod
    def of(cls, recording: Recording) -> Self:
        found = max((_told(log) for log in recording.ranks.values()), default=0)
        if not found:
            raise NotApplicable("no budget was named (`check-memory --budget 80GiB`)")
        return cls(found, derived(Memory, recording))

    @property
    def fullest(self) -> RankMemory:
        """The rank that needs most."""
        return max(self.memory.each(), key=lambda rank: rank.peak)

    @property
    def beyond(self) -> tuple[int, ...]:
        """The ranks that need more than there is."""
        return tuple(rank.rank for rank in self.memory.each() if rank.peak > self.bytes)


def _told(log: RankTrace) -> int:
    settings = log.environment.get("settings")
    found = settings.get("budget_bytes", 0) if isinstance(settings, dict) else 0
    return found if isinstance(found, int) else 0


@dataclass(frozen=True)
class Relief:
    """What one remedy would take off the fullest rank, by what was measured. A sum, no promise: `advise` predicts and tries."""

    remedy: str
    words: str
    about: str
    bytes: int
    limit: str = ""
    """`up to` or `about`."""

    def __str__(self) -> str:
        return f"{self.words}: {self.limit} {mib(self.bytes)} ({self.about})"


def savings(rank: RankMemory, ranks: int) -> list[Relief]:
    """The remedies that would help this rank of so many, the largest saving first."""
    saved = rank.saved()
    activations, largest = sum(size for size, *_ in saved), saved[0][0] if saved else 0
    held = sum(rank.most(name) for name in ("parameters", "gradients", "state"))
    sharded = held - held // ranks
    lazily = rank.buckets() if rank.knows_lazy_buckets else 0
    found = [
        Relief("checkpoint-activations", "recompute activations", f"all but the largest module's {mib(largest)}",
               activations - largest, "up to"),
        Relief("halve-the-micro-batch", "half the micro-batch", "half of what is kept for backward", activations // 2, "about"),
        Relief("make-buckets-lazily", "lazy_bucket_allocation=True", "the buckets", lazily, "up to"),
        Relief("fully-shard", f"fully_shard over {ranks} ranks", "of parameters, gradients, optimizer state", sharded, "about"),
    ]  # fmt: skip
    return sorted((one for one in found if one.bytes > 0), key=lambda one: -one.bytes)
