"""
LAB001 many-barriers: more barriers than steps.

What it means    The ranks meet in a barrier more often than they step.
Why it hurts     Each barrier waits for the slowest rank.
How we know      The recording holds more barriers than optimizer steps.
What to do       Leave the barriers out.
When it is fine  Before the first step.
Source           Common sense.
"""

from collections.abc import Iterator

from distdoctor.plugin_api import ERROR, Finding, Op, Prescription, Recording, Remedy, check
from distdoctor.testing import recording

LEAVE_OUT = Remedy("leave-barriers-out", "Leave the barriers out.", safety="Results stay the same.")


@check("LAB001", "many-barriers", severity=ERROR)
def examine(seen: Recording) -> Iterator[Finding]:
    for rank, log in seen.ranks.items():
        barriers = int((log.calls["op"] == Op.BARRIER).sum())
        if barriers > len(log.steps) > 0:
            yield Finding(
                title=f"{barriers} barriers",
                why=f"{len(log.steps)} optimizer steps",
                ranks=(rank,),
                prescriptions=(Prescription(LEAVE_OUT.slug),),
            )


def sick() -> Recording:
    return _trained(barriers=2)


def healthy() -> Recording:
    return _trained(barriers=1)


def _trained(barriers: int) -> Recording:
    script = recording(ranks=2)
    for _ in range(3):
        for _ in range(barriers):
            script.collective("barrier", site="train.py:40 train")
        script.step()
    return script.finished()
