"""
DD607 oversubscribed-cpu: ranks, their threads and their workers need more cores than there are.

What it means    ranks x OMP_NUM_THREADS, or ranks x workers, exceeds the cores available to this host or its cgroup.
Why it hurts     Threads that wait for each other are descheduled in the middle of a step: everything slows down by far more
                 than the ratio, and ranks arrive late at collectives.
How we know      The affinity mask, the cgroup's cpu.max, OMP_NUM_THREADS (torchrun sets 1) and the workers given on the command
                 line.
What to do       Set OMP_NUM_THREADS to at most cores / ranks; use fewer workers; request more CPUs.
When it is fine  Workers that mostly wait for storage: nothing is reported up to twice the cores.
Source           https://docs.pytorch.org/docs/stable/notes/multiprocessing.html (CPU oversubscription)
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import LIKELY, WARNING, Finding, Prescription
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import checked_machine

TOLERATED = 2.0  # times the cores: workers wait for storage, ranks for each other


@check("DD607", "oversubscribed-cpu", severity=WARNING, stands_alone=True, at_most=LIKELY)
def examine(trial: PreflightTrial) -> Iterator[Finding]:
    machine = trial.machine
    threads = machine.threads or int(machine.cores)
    wanted = machine.ranks * max(threads, machine.workers)  # as a rule one waits for the other
    if wanted > TOLERATED * machine.cores:
        most = max(1, int(machine.cores // machine.ranks))
        yield Finding(
            title=f"{machine.ranks} ranks with {threads} threads and {machine.workers} workers each need {wanted} cores, but "
            f"there are only {machine.cores:g}",
            confidence=LIKELY,
            evidence={"cores": f"{machine.cores:g}", "OMP_NUM_THREADS": str(machine.threads or "not set")},
            why="Threads that wait for each other lose their core in the middle of a step.",
            prescriptions=(Prescription("fewer-threads", change=f"export OMP_NUM_THREADS={most}"),),
        )


def sick() -> Recording:
    """A container with two cores, four ranks, OMP_NUM_THREADS=8 from the image."""
    return checked_machine(cores=2.0, threads=8)


def healthy() -> Recording:
    """One thread a rank, as torchrun sets it."""
    return checked_machine()
