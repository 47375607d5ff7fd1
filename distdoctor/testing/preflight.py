"""What a preflight would find, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distdoctor.recording.nccl_remark import NcclRemark
from distdoctor.recording.preflight import CheckedMachine, Preflight, TrialRank
from distdoctor.recording.recording import Job, Recording

VERSIONS = {"python": "3.12.4", "torch": "2.15.0", "code here": "5d41402abc4b"}


def checked_machine(
    ranks: Mapping[int, Mapping[str, Any]] | None = None, *, remarks: tuple[NcclRemark, ...] = (), **machine: Any
) -> Recording:
    """Four ranks on eight cores that met; `ranks` says what is odd about some of them, `machine` about the host, `remarks` what
    NCCL's own diagnostics printed."""
    odd = ranks or {}
    usual: dict[str, Any] = {
        "host": "node0",
        "versions": VERSIONS,
        "joined_seconds": 0.1,
        "sums": {4096: (0.0002, True)},
    }
    found = {rank: TrialRank(rank, **{**usual, **odd.get(rank, {})}) for rank in range(4)}
    about: dict[str, Any] = {
        "host": "node0",
        "ranks": 4,
        "cores": 8.0,
        "threads": 1,
        "shm_bytes": 8 << 30,
        "shm_free": 8 << 30,
    }
    preflight = Preflight(CheckedMachine(**{**about, **machine}), 4, "gloo", found, remarks)
    return Recording(Job(("preflight",)), {}, frozenset(), preflight=preflight)
