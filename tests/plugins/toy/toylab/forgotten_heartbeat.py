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

from distdoctor.plugin_api import ERROR, Finding, IncidentKind, Op, Stalls, Verdict, check


@check("LAB002", "forgotten-heartbeat", severity=ERROR, family="hang", stalls=Stalls.FOREVER, specificity=95)
def examine(verdict: Verdict) -> Iterator[Finding]:
    for incident in verdict.of_kind(IncidentKind.DIVERGED):
        usual = incident.usual
        if usual is not None and usual.op is Op.BROADCAST and usual.shape == "[1]":
            yield Finding(
                title=f"did not send heartbeat #{usual.number}",
                ranks=incident.ranks,
                place=usual.site,
                stalls=incident.stalls,
                at_ns=incident.at_ns,
                explains=(incident.key,),
            )
