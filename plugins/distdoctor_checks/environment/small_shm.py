"""
DD606 small-shm: /dev/shm is too small for the DataLoader workers of all ranks.

What it means    DataLoader workers pass batches through shared memory, and NCCL keeps buffers there; a container has 64 MiB of
                 it by default.
Why it hurts     SIGBUS kills a worker ("DataLoader worker is killed by signal: Bus error"), or NCCL fails to start.
How we know      The size of /dev/shm, compared with 64 MiB per worker (two prefetched batches of 32 MiB) and 16 MiB per rank. In
                 a job's log, torch's own words for a worker that died of it, and NCCL's for a segment that it could not make.
What to do       docker run --ipc=host or --shm-size=8g; in Kubernetes an emptyDir with medium: Memory at /dev/shm.
When it is fine  Small batches, or num_workers=0.
Source           https://docs.docker.com/reference/cli/docker/container/run/ (--shm-size); NCCL troubleshooting, "Shared memory"
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import ERROR, LIKELY, WARNING, Finding, Prescription
from distdoctor.diagnosis.hang.in_logs import SHARED_MEMORY, LogFacts, from_line, from_own_error
from distdoctor.recording.clue import ClueKind
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import checked_machine

_BUS_ERROR = re.compile(
    r"DataLoader worker \(pid.{0,30}\) is killed by signal: Bus error|bus error encountered in worker"
)
OF_A_WORKER = 64 << 20  # two prefetched batches (torch's prefetch_factor) of 32 MiB
OF_A_RANK = 16 << 20  # NCCL's buffers between ranks of one host: some 10 MiB a peer


@check("DD606", "small-shm", severity=WARNING, stands_alone=True, at_most=LIKELY)
def examine(trial: PreflightTrial | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None and log.own_error is not None and _BUS_ERROR.search(log.own_error.words):
        title = "a DataLoader worker died of a bus error: shared memory was full"
        yield replace(from_own_error(log, title, Prescription("more-shared-memory")), severity=ERROR)
    if log is not None:
        yield from _of_nccl(log)
    machine = trial.machine if trial is not None else None
    if machine is None or machine.shm_free is None:
        return
    wanted = machine.ranks * (OF_A_RANK + machine.workers * OF_A_WORKER)
    if machine.shm_free < wanted:
        yield Finding(
            title=f"shared memory has {machine.shm_free >> 20} MiB free, but {machine.ranks} ranks with {machine.workers} "
            f"workers each may need {wanted >> 20} MiB",
            confidence=LIKELY,
            evidence={"size": f"{(machine.shm_bytes or 0) >> 20} MiB", "free": f"{machine.shm_free >> 20} MiB"},
            why="Workers pass batches through shared memory; when it is full, SIGBUS kills them.",
            prescriptions=(Prescription("more-shared-memory"),),
        )


def _of_nccl(log: LogFacts) -> Iterator[Finding]:
    title, cure = "NCCL could not make its shared memory: /dev/shm is full", Prescription("more-shared-memory")
    if log.own_error is not None and SHARED_MEMORY.search(log.own_error.words):
        yield replace(from_own_error(log, title, cure), severity=ERROR)
        return
    warned = [clue for clue in log.lines(ClueKind.WARNING) if SHARED_MEMORY.search(clue.words)]
    if warned:
        ranks = sorted({clue.rank for clue in warned if clue.rank >= 0})
        found = from_line(warned[0], title, ranks, LIKELY, "NCCL says so; what fails after it follows", cure, 90)
        yield replace(found, severity=ERROR)


def sick() -> Recording:
    """A container with Docker's default of 64 MiB, four ranks with four workers each."""
    return checked_machine(workers=4, shm_bytes=64 << 20, shm_free=64 << 20)


def healthy() -> Recording:
    """Half of the memory, as outside of containers."""
    return checked_machine(workers=4)
