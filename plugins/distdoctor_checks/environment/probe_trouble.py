"""
DD902 probe-trouble: the recorder of a rank fell silent before the rank did, and why.

What it means    Something that the recorder met in the rank's process raised inside it. It noted the error, stopped for good
                 (or stopped one stream) and left the training alone.
Why it hurts     What happened afterwards on that rank is not in the recording: no check can see it, nothing is called healthy.
How we know      The recorder's own last note in the rank's trace.
What to do       If the error names something that your program replaced (a clock, a method of torch), put it back for the run;
                 otherwise report it with `distdoctor env --json`.
When it is fine  A stream that you do not need: leave it out with --streams, and nothing is said.
Source           distdoctor's own promise: inside a rank nothing of it propagates.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.recorder import RecorderTroubles
from distdoctor.diagnosis.finding import CERTAIN, NOTE, Finding, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import ProbeTrouble
from distdoctor.testing.rank_trace import TraceBuilder


@check("DD902", "probe-trouble", severity=NOTE, stands_alone=True)
def examine(recorders: RecorderTroubles) -> Iterator[Finding]:
    for what, ranks in recorders.ranks.items():
        yield Finding(
            title=f"the recorder of {named(ranks)} fell silent: {what}",
            ranks=ranks,
            confidence=CERTAIN,
            evidence={"error": what},
            why="What happened there afterwards was not recorded; the training was left alone.",
            prescriptions=(Prescription("report-the-recorder"),),
        )


def _job(*troubles: str) -> Recording:
    log = TraceBuilder(0, world_size=1)
    for what in troubles:
        log.note(ProbeTrouble(what))
    return Recording(Job(argv=("train.py",), world_size=1), {0: log.build()})


def sick() -> Recording:
    return _job("enter: error: required argument is not an integer")


def healthy() -> Recording:
    """It recorded to the end."""
    return _job()
