"""
LAB002 forgotten-heartbeat: a rank did not send the heartbeat that this lab's runner expects of everybody.

What it means    The lab's runner lets every rank join a broadcast of one number after each step; a rank went on without it.
Why it hurts     The others wait in that broadcast for ever.
How we know      The calls of a group part at a broadcast of one number.
What to do       Call lab.heartbeat() after every step, on every rank.
When it is fine  Never.
Source           The runner of this lab.
"""

from collections.abc import Iterator

from distdoctor.plugin_api import (
    ERROR,
    Finding,
    IncidentKind,
    Op,
    Prescription,
    Recording,
    Remedy,
    Stalls,
    Verdict,
    check,
)
from distdoctor.testing import recording

SEND = Remedy("send-heartbeat", "Call lab.heartbeat() after every step, on every rank.", safety="Nothing else changes.")


@check("LAB002", "forgotten-heartbeat", severity=ERROR, family="hang", stalls=Stalls.FOREVER, specificity=95)
def examine(verdict: Verdict) -> Iterator[Finding]:
    for incident in verdict.of_kind(IncidentKind.DIVERGED):
        usual = incident.usual
        if usual is not None and usual.op is Op.BROADCAST and usual.shape == "[1]":
            yield Finding(
                title=f"did not send heartbeat #{usual.number}",
                why="the others wait in the broadcast of one number",
                ranks=incident.ranks,
                place=usual.site,
                stalls=incident.stalls,
                at_ns=incident.at_ns,
                explains=(incident.key,),
                prescriptions=(Prescription(SEND.slug),),
            )


def sick() -> Recording:
    script = recording(ranks=3)
    for step in range(4):
        script.collective("all_reduce", [8], site="train.py:41 step")
        script.collective("broadcast", [1], site="train.py:42 step").skipped_by(1 if step == 2 else ())
        script.step()
    return script.live()


def healthy() -> Recording:
    """Rank 1 leaves out something else."""
    script = recording(ranks=3)
    for step in range(4):
        script.collective("all_reduce", [8], site="train.py:41 step").skipped_by(1 if step == 2 else ())
        script.collective("broadcast", [1], site="train.py:42 step")
        script.step()
    return script.live()
