"""What NCCL's RAS says of each communicator, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from distdoctor.recording.rank_set import named


@dataclass(frozen=True)
class Absent:
    """A rank of a communicator of which RAS has no data, because its process does not answer."""

    rank: int
    process: str  # `process 1524345 on node 172.16.64.245`, "" where it is not told
    is_dead: bool = False


@dataclass(frozen=True)
class Communicator:
    """One communicator: what each rank that answered has launched, by kind of call, and who did not answer."""

    name: str
    size: int
    counts: Mapping[int, Mapping[str, int]]
    absent: tuple[Absent, ...] = ()
    starting: tuple[int, ...] = ()  # ranks that are still being initialised
    failed: Mapping[int, int] = field(default_factory=dict)  # rank -> NCCL's error (ncclResult_t)
    processes: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """What both forms call it by: the hash, which the text writes behind its number in the list."""
        written = self.name.rpartition("(")[2].rstrip(")").lower().removeprefix("0x")
        return written.lstrip("0") or written

    @cached_property
    def operations(self) -> tuple[str, ...]:
        return tuple(sorted({name for counts in self.counts.values() for name in counts}))


@dataclass(frozen=True)
class RasReport:
    """The communicators of a job, and the processes that RAS takes for dead. `version` is NCCL's, "" in the text form.

    `asked_at`: when, in RAS's own words; the text form does not say. `name`: what to call this answer beside others of one job.
    `earlier`: those before it, the oldest first.
    """

    communicators: tuple[Communicator, ...]
    dead: tuple[str, ...] = ()
    version: str = ""
    asked_at: str = ""
    name: str = ""
    earlier: tuple[RasReport, ...] = ()

    @cached_property
    def by_key(self) -> Mapping[str, Communicator]:
        """The communicators by what every answer calls them."""
        return {one.key: one for one in self.communicators}

    @property
    def size(self) -> int:
        """How many ranks the largest communicator has."""
        return max((one.size for one in self.communicators), default=0)

    @property
    def answered(self) -> set[int]:
        """The ranks of the largest communicator that gave an answer."""
        largest = max(self.communicators, key=lambda one: one.size, default=None)
        return set(range(largest.size)) - {one.rank for one in largest.absent} if largest is not None else set()

    def lines(self) -> list[str]:
        """One line for each communicator whose ranks have launched different numbers of calls, or do not answer."""
        found = [f"{len(self.communicators)} communicators" + (f", NCCL {self.version}" if self.version else "")]
        for one in self.communicators:
            totals = {rank: sum(counts.values()) for rank, counts in one.counts.items()}
            most = max(totals.values(), default=0)
            behind = sorted(rank for rank, total in totals.items() if total < most)
            words = [f"{named(behind)} have launched less than {most} calls"] if behind else []
            words += [f"{named(absent.rank for absent in one.absent)} do not answer"] if one.absent else []
            found += [f"communicator {one.name} of {one.size}: {', '.join(words)}"] if words else []
        return found[:12]
