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

import re
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, POSSIBLE, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.in_logs import GOES_ON_LINES, LogFacts, from_line, who
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import from_exception
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import checked_machine

# Of torch's store alone: a script may want ports of its own, for a server or a dashboard.
_IN_USE = re.compile(
    r"server socket has failed to listen.*(?:EADDRINUSE|address already in use)", re.IGNORECASE | re.DOTALL
)


@check("DD605", "port-in-use", severity=ERROR, stands_alone=True, stalls=Stalls.FOREVER, specificity=30)
def examine(trial: PreflightTrial | None, verdict: Verdict | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None and (refused := log.lines(ClueKind.PORT_TAKEN)):
        yield _refused(next((clue for clue in refused if clue.site), refused[0]), log)
    for incident in verdict.of_kind(IncidentKind.FAILED) if verdict is not None else ():
        if incident.ending is not None and (title := _taken(incident.ending.words)):
            yield from_exception(incident, title, Prescription("free-port"), whose="torch's")
    machine = trial.machine if trial is not None else None
    if machine is not None and trial is not None and machine.holder:
        yield Finding(
            title=f"{machine.address} is in use: {machine.holder} listens there",
            ranks=tuple(trial.found.ranks)[:1],  # who would listen there
            confidence=CERTAIN,
            evidence={"who listens": machine.holder},
            why="The rank or agent that should listen there cannot.",
            prescriptions=(Prescription("free-port"),),
        )


def _refused(clue: Clue, log: LogFacts) -> Finding:
    """Torch's store logs that it cannot listen, with the port in lines of their own, before it raises. A script may take another
    port then, and have trouble of its own later, or have had it before."""
    own = log.own_error
    was_it = not log.goes_on_after(clue) and (own is None or 0 < own.line_number - clue.line_number < GOES_ON_LINES)
    return from_line(
        clue,
        f"port {clue.numbers[0]} is in use" if clue.numbers else "the store cannot listen where the ranks are to meet",
        who(clue),
        LIKELY if was_it and clue.numbers else POSSIBLE,
        "torch's store says so" + ("" if was_it else "; the log goes on: another port may have been taken"),
        Prescription("free-port"),
        specificity=90 if was_it else 10,
    )


def _taken(words: str) -> str:
    """What an exception says of a port that is in use, "" when it says something else."""
    if not _IN_USE.search(words):
        return ""
    port = re.search(r"port: (\d{1,5})", words)
    return f"port {port[1]} is in use" if port else "the port of the rendezvous is in use"


def sick() -> Recording:
    """An earlier run still listens."""
    return checked_machine(address="node0:29500", holder="pid 4711 (python) of anna")


def healthy() -> Recording:
    """The port is free."""
    return checked_machine(address="node0:29500")
