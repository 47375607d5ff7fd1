"""
DD509 wrong-backend: collectives of CUDA tensors go through gloo, which copies them through host memory.

What it means    The process group uses gloo and its tensors are on a CUDA device: each call copies them to the host, sends them
                 over a socket and copies them back.
Why it hurts     A tenth of NCCL's speed or less, and every call waits for the device.
How we know      The backend of the group, and the device of the tensors passed to it.
What to do       init_process_group("nccl"), or "cpu:gloo,cuda:nccl" if both are needed.
When it is fine  A few occasional calls, such as for a checkpoint or a metric. Two ranks on one device: NCCL refuses that, and
                 only gloo is left.
Source           torch.distributed: "Rule of thumb: use the NCCL backend for distributed GPU training".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.finding import CERTAIN, WARNING, Finding, Place, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Job, RankTrace, Recording, SourceLine
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.testing.rank_trace import TraceBuilder

FEWEST = 16  # calls per rank


@check("DD509", "wrong-backend", severity=WARNING, live=False, stands_alone=True)
def examine(collectives: Collectives) -> Iterator[Finding]:
    found: dict[tuple[str, SourceLine], dict[int, tuple[int, int]]] = {}
    for rank, log in collectives.recording.ranks.items():
        for key, sent in _through_gloo(log):
            found.setdefault(key, {})[rank] = sent
    for (group, site), by_rank in found.items():
        ranks = tuple(sorted(by_rank))
        calls, nbytes = by_rank[ranks[0]]
        yield Finding(
            title=f"{calls} collectives of CUDA tensors went through gloo, {nbytes / calls / 2**20:.2f} MiB each",
            ranks=ranks,
            confidence=CERTAIN,
            place=site,
            places=(Place(site, ranks, "passes CUDA tensors to a group whose backend is gloo"),),
            evidence={"calls": calls, "bytes": nbytes, "group": group},
            why=f"gloo copies CUDA tensors to the host and back on {named(ranks)}",
            prescriptions=(Prescription("nccl-for-devices"),),
        )


def _through_gloo(log: RankTrace) -> Iterator[tuple[tuple[str, SourceLine], tuple[int, int]]]:
    """((group, line), (calls, bytes)) of the line that hands most bytes of each group to the wrong backend."""
    for group in log.group_list():
        if group.backend != "gloo" or _shares_devices(log):
            continue
        calls = log.calls
        keys = [number for number, text in enumerate(log.texts) if text == group.name]
        mine = calls[np.isin(calls["group"], keys) & ((calls["flags"] & CallFlag.ON_DEVICE) != 0)]
        if len(mine) < FEWEST:
            continue
        sites = np.unique(mine["site"])
        worst = max(sites, key=lambda site: int(mine["nbytes"][mine["site"] == site].sum()))
        yield (group.name, log.site(int(worst))), (len(mine), int(mine["nbytes"].sum()))


def _shares_devices(log: RankTrace) -> bool:
    """Whether this host has more ranks than devices, so that NCCL could not be used."""
    devices = log.environment.get("cuda_devices")
    variables = log.environment.get("variables", {})
    local = variables.get("LOCAL_WORLD_SIZE", "") if isinstance(variables, dict) else ""
    return isinstance(devices, int) and local.isdigit() and int(local) > devices


def _job(backend: str) -> Recording:
    logs = []
    for rank in range(2):
        log = TraceBuilder(rank, world_size=2)
        log.group("0", range(2), backend=backend)
        for _ in range(20):
            log.call("all_reduce", (1000, 1000), native=True, flags=CallFlag.ON_DEVICE, site="train.py:31 train")
            log.step()
        logs.append(log.build())
    return Recording(Job(argv=("train.py",), world_size=2), dict(enumerate(logs)))


def sick() -> Recording:
    return _job("gloo")


def healthy() -> Recording:
    return _job("nccl")
