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

LEAVE_OUT = Remedy("leave-barriers-out", "Leave the barriers out.")


@check("LAB001", "many-barriers", severity=ERROR)
def examine(seen: Recording) -> Iterator[Finding]:
    for rank, log in seen.ranks.items():
        barriers = int((log.calls["op"] == Op.BARRIER).sum())
        if barriers > len(log.steps) > 0:
            yield Finding(title=f"{barriers} barriers", ranks=(rank,), prescriptions=(Prescription(LEAVE_OUT.slug),))
