"""
DD604 rendezvous-unreachable: ranks cannot meet at the rendezvous endpoint.

What it means    The host name does not resolve, nothing answers there, the host cannot listen there, or ranks did not return
                 from the group in time.
Why it hurts     Ranks wait in init_process_group until its timeout, half an hour by default, without showing for which rank.
How we know      This host resolved the name and connected (or listened) itself; then empty ranks joined a group and left it.
What to do       Use an address that every host can reach, open the port, and name the interface (GLOO_SOCKET_IFNAME,
                 NCCL_SOCKET_IFNAME) if a host has several.
When it is fine  The check ran before the first host was listening: run it again once it is.
Source           https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import checked_machine


@check("DD604", "rendezvous-unreachable", severity=ERROR, stands_alone=True)
def examine(trial: PreflightTrial) -> Iterator[Finding]:
    machine = trial.machine
    if machine.unresolved or machine.unreachable:
        yield _finding(
            f"{machine.host} cannot reach {machine.address}: {machine.unresolved or machine.unreachable}",
            tuple(trial.found.ranks),
        )
        return
    if machine.holder or machine.lacks_devices:
        return  # told as what it is
    apart = {rank: one.trouble for rank, one in trial.found.ranks.items() if one.trouble}
    if apart:
        first = next(iter(apart.values()))
        yield _finding(f"{named(tuple(apart))} could not meet the others: {first}", tuple(apart))


def _finding(title: str, ranks: tuple[int, ...]) -> Finding:
    return Finding(
        title=title,
        ranks=ranks,
        confidence=CERTAIN,
        why="init_process_group waits there for every rank; if one cannot arrive, all wait until the timeout.",
        prescriptions=(Prescription("reachable-rendezvous"),),
    )


def sick() -> Recording:
    """The name of the first host is not known here."""
    return checked_machine(
        {rank: {"trouble": "timed out"} for rank in range(4)},
        address="trainer-0:29500",
        unresolved="trainer-0: Name or service not known",
    )


def healthy() -> Recording:
    """The endpoint answers, and all ranks met."""
    return checked_machine(address="trainer-0:29500")
