"""
DD130 died-on-the-way-out: a rank died during interpreter shutdown, after its work was done.

What it means    The script of this rank had ended without an error, or it had left its process groups, before a signal killed
                 the process: a C++ thread or an object outlived the interpreter.
Why it hurts     The launcher reports the job as failed, restarts it, or discards its results, although they are complete.
How we know      The script ended without an exception, the interpreter began its shutdown, no group had a call in flight, and
                 only then did the process die from a signal.
What to do       Release models, optimizers and handles before destroy_process_group: train inside a function so that none of
                 them is global. A wrapped model keeps its process group alive, and with it the group's threads.
When it is fine  Never, but what the job wrote before that is complete.
Source           Core files (torch 2.14, Python 3.11): gloo's thread drops the last reference to an all_reduce, whose state holds
                 an object of Python's since autograd hands its context on; acquiring the GIL during interpreter shutdown ends
                 that thread inside a destructor: `terminate called without an active exception` (pytorch/pytorch issue 190489).
                 `benchmarks/exit_aborts.py`: 8 of 24 runs; 0 of 24 with the model freed before destroy_process_group, and 0
                 of 24 with a pause of 0.1 s after it. Python 3.14 lets such a thread hang instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.hang.ending import SIGABRT, Ending
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Exiting, GroupDestroyed
from distdoctor.testing import recording

NAMES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}


@check("DD130", "died-on-the-way-out", severity=WARNING, family="hang")
def examine(verdict: Verdict) -> Iterator[Finding]:
    for incident in verdict.of_kind(IncidentKind.DIED_LATE):
        yield _finding(verdict, incident)


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    ending = incident.ending
    assert ending is not None
    word = NAMES.get(ending.signal, f"signal {ending.signal}")
    timeline = verdict.timeline(ending.rank)
    last = timeline.last_site
    return Finding(
        title=f"died of {word} during interpreter shutdown; the script had ended, and its results are complete",
        ranks=incident.ranks,
        confidence=CERTAIN,
        place=last,
        places=(Place(last, incident.ranks, "its last recorded communication"),) if last else (),
        evidence={"signal": ending.signal, "steps": timeline.steps},
        why=_why(incident, ending),
        prescriptions=(Prescription("leave-in-order", change=_CHANGE),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _why(incident: Incident, ending: Ending) -> str:
    words = f"{named(incident.ranks)} reached the end of the script without an error before the signal"
    if ending.signal == SIGABRT:
        words += "; a backend thread that outlives the interpreter dies this way (`terminate called without an active"
        words += " exception`)"
    return words


_CHANGE = (
    "import torch.distributed.nn before init_process_group, train inside a function, and call dist.destroy_process_group() "
    "when the wrapped model is gone (`del model` before it)"
)


def _ended(signal: int) -> Recording:
    script = recording(ranks=2)
    for _ in range(3):
        script.collective("all_reduce", [8], site="train.py:41 train_step").step()
    script.note(GroupDestroyed(""), 1).note(Exiting(), 1)
    return script.killed(1, signal).finished() if signal else script.exits(1).finished()


def sick() -> Recording:
    return _ended(6)


def healthy() -> Recording:
    """The same end, without a signal."""
    return _ended(0)
