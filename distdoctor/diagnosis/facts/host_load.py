"""What the ranks of one host compute with, against the cores that are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import CoreShare


@dataclass(frozen=True)
class HostLoad:
    """One host: what each of its ranks noted."""

    host: str
    ranks: Mapping[int, CoreShare]

    @property
    def cores(self) -> float:
        """How many cores the ranks may use together."""
        cpus = {cpu for share in self.ranks.values() for cpu in share.cpus}
        quotas = [share.quota for share in self.ranks.values() if share.quota]
        return min([float(len(cpus)), *quotas])

    @property
    def threads(self) -> int:
        """Of all ranks together."""
        return sum(share.threads for share in self.ranks.values())

    @property
    def queued_share(self) -> float:
        """The part of the time that the main threads stood in the queue for a core, of the time that they could have run."""
        return median(share.queued_ns / max(share.ran_ns + share.queued_ns, 1) for share in self.ranks.values())


@dataclass(frozen=True)
class HostLoads:
    """Every host whose ranks train on the CPU."""

    streams: ClassVar[frozenset[str]] = frozenset({"progress", "environment"})
    hosts: tuple[HostLoad, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """NotApplicable: they train on devices, or nobody counted."""
        found: dict[str, dict[int, CoreShare]] = defaultdict(dict)
        for rank, log in recording.ranks.items():
            last = next(reversed(list(log.noted(CoreShare))), None)
            if last is not None and not log.environment.get("cuda_devices"):
                found[str(log.environment.get("host", ""))][rank] = last
        if not found:
            raise NotApplicable("no rank made eight steps on a CPU whose queue the kernel counts")
        return cls(tuple(HostLoad(host, ranks) for host, ranks in sorted(found.items())))
