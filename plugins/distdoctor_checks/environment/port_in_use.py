"""
DD605 port-in-use: the rendezvous port is already in use on the host that should listen there.

What it means    Another process already listens there: an earlier run that is still alive, a second job, or a service.
Why it hurts     The job ends with EADDRINUSE before it starts; worse, the ranks may join the other job's store.
How we know      This host tried to listen there, and the kernel's socket table shows which process does.
What to do       End that process, or use another port (with one host, --rdzv-endpoint HOST:0 lets the system choose).
When it is fine  Never: two jobs cannot share one endpoint.
Source           man 7 socket, SO_REUSEADDR; https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import Trial
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Prescription
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import checked_machine


@check("DD605", "port-in-use", severity=ERROR, stands_alone=True)
def examine(trial: Trial) -> Iterator[Finding]:
    machine = trial.machine
    if machine.holder:
        yield Finding(
            title=f"{machine.address} is in use: {machine.holder} listens there",
            ranks=tuple(trial.found.ranks)[:1],  # who would listen there
            confidence=CERTAIN,
            evidence={"who listens": machine.holder},
            why="The rank or agent that should listen there cannot.",
            prescriptions=(Prescription("free-port"),),
        )


def sick() -> Recording:
    """An earlier run still listens."""
    return checked_machine(address="node0:29500", holder="pid 4711 (python) of anna")


def healthy() -> Recording:
    """The port is free."""
    return checked_machine(address="node0:29500")
