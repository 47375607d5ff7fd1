"""
DD607 oversubscribed-cpu: ranks, their threads and their workers need more cores than there are.

What it means    ranks x OMP_NUM_THREADS, or ranks x workers, exceeds the cores available to this host or its cgroup.
Why it hurts     Threads that wait for each other are descheduled in the middle of a step: everything slows down by far more
                 than the ratio, and ranks arrive late at collectives.
How we know      Before a job: the affinity mask, the cgroup's cpu.max, OMP_NUM_THREADS (torchrun sets 1) and the workers given
                 on the command line. In a job on CPUs: torch.get_num_threads() of every rank of the host, if their main threads
                 stood in the queue for a core for a fifth of the time or more (/proc/thread-self/schedstat).
What to do       Set OMP_NUM_THREADS to at most cores / ranks; use fewer workers; request more CPUs.
When it is fine  Workers that mostly wait for storage: nothing is reported up to twice the cores.
Source           https://docs.pytorch.org/docs/stable/notes/multiprocessing.html (CPU oversubscription)
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.host_load import HostLoad, HostLoads
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.recording.preflight import CheckedMachine
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.testing.preflight import checked_machine

TOLERATED = 2.0  # times the cores: workers wait for storage, ranks for each other
LEAST_QUEUED = 0.2  # of the time that main threads could have run: nobody needs fewer threads who gets his core
FEWEST_STEPS = 4  # in which the queue was looked at


@check("DD607", "oversubscribed-cpu", severity=WARNING, stands_alone=True, live=False, at_most=LIKELY)
def examine(trial: PreflightTrial | None, loads: HostLoads | None) -> Iterator[Finding]:
    if trial is not None:
        yield from _expected(trial.machine)
    for load in loads.hosts if loads is not None else ():
        counted = min(share.steps for share in load.ranks.values()) >= FEWEST_STEPS
        too_many = load.threads > max(TOLERATED * load.cores, len(load.ranks))  # fewer than one each cannot be
        if counted and too_many and load.queued_share >= LEAST_QUEUED:
            yield _seen(load)


def _expected(machine: CheckedMachine) -> Iterator[Finding]:
    threads = machine.threads or int(machine.cores)
    wanted = machine.ranks * max(threads, machine.workers)  # as a rule one waits for the other
    if wanted > TOLERATED * machine.cores:
        yield Finding(
            title=f"{machine.ranks} ranks with {threads} threads and {machine.workers} workers each need {wanted} cores, but "
            f"there are only {machine.cores:g}",
            confidence=LIKELY,
            evidence={"cores": f"{machine.cores:g}", "OMP_NUM_THREADS": str(machine.threads or "not set")},
            why="Threads that wait for each other lose their core in the middle of a step.",
            prescriptions=(Prescription("fewer-threads", change=_fewer(machine.cores, machine.ranks)),),
        )


def _seen(load: HostLoad) -> Finding:
    ranks = tuple(sorted(load.ranks))
    site = next((share.site for share in load.ranks.values() if share.site), None)
    each = {share.threads for share in load.ranks.values()}
    words = f"{each.pop()} threads each" if len(each) == 1 else f"{load.threads} threads together"
    most = max(1, int(load.cores // len(ranks)))
    return Finding(
        title=f"{len(ranks)} ranks compute with {words} on {load.cores:g} core{'s' if load.cores != 1 else ''}"
        + (f" of host {load.host}" if load.host else ""),
        ranks=ranks,
        confidence=LIKELY,
        place=site or SourceLine(),
        places=(Place(site, ranks, "sets the number of threads"),) if site else (),
        evidence={"cores": f"{load.cores:g}", "threads": load.threads, "queued": f"{load.queued_share:.0%}"},
        why=f"the main threads stood in the queue for a core for {load.queued_share:.0%} of the time that they could have run",
        prescriptions=(
            Prescription(
                "fewer-threads", change=f"torch.set_num_threads({most})" if site else _fewer(load.cores, len(ranks))
            ),
        ),
    )


def _fewer(cores: float, ranks: int) -> str:
    return f"export OMP_NUM_THREADS={max(1, int(cores // ranks))}"


def sick() -> Recording:
    """A container with two cores, four ranks, OMP_NUM_THREADS=8 from the image."""
    return checked_machine(cores=2.0, threads=8)


def healthy() -> Recording:
    """One thread a rank, as torchrun sets it."""
    return checked_machine()
