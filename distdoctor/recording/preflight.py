"""What a machine and empty ranks on it showed before any training: `distdoctor preflight`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distdoctor.recording.nccl_remark import NcclRemark


@dataclass(frozen=True)
class CheckedMachine:
    """One host. Sizes in bytes; None or "": could not be found out, or was not asked.

    `cores` is what the ranks may use together: affinity and cgroup limit. `threads` is OMP_NUM_THREADS as each rank will have it
    (0: not set, so every rank takes all cores). `address` is the endpoint of the rendezvous, `unresolved` why its name leads
    nowhere, `unreachable` why nothing answers or can listen there, `holder` who listens there already.
    """

    host: str
    ranks: int
    cores: float
    threads: int = 0
    workers: int = 0  # of each rank's loader
    shm_bytes: int | None = None
    shm_free: int | None = None
    address: str = ""
    unresolved: str = ""
    unreachable: str = ""
    holder: str = ""
    devices: int | None = None  # CUDA devices that ranks started here will see; None: their backend needs none

    @property
    def lacks_devices(self) -> bool:
        """Whether not every rank can have a device of its own."""
        return self.devices is not None and self.devices < self.ranks


@dataclass(frozen=True)
class TrialRank:
    """One rank that joined a group, reduced, and left. `sums`: bytes of an all_reduce -> (seconds of one, whether the result is
    the exact sum). `trouble`: why it could not. `clock_ns`: its wall clock right after a barrier."""

    rank: int
    host: str
    versions: Mapping[str, str] = field(default_factory=dict)
    joined_seconds: float = 0.0
    clock_ns: int = 0
    sums: Mapping[int, tuple[float, bool]] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class Preflight:
    """All of it. `expected` ranks were started or waited for; `remarks` is what diagnostics of NCCL itself printed."""

    machine: CheckedMachine
    expected: int
    backend: str
    ranks: Mapping[int, TrialRank] = field(default_factory=dict)
    remarks: tuple[NcclRemark, ...] = ()
