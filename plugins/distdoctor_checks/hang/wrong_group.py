"""
DD124 wrong-group: a collective was called on the default group where a sub-group was meant.

What it means    Exactly the members of one sub-group issued a collective on a larger group, where the other members
                 have nothing of the kind: `group=` was forgotten.
Why it hurts     The larger group waits for ranks that have no reason to come; where they happen to issue something that
                 fits, sums are taken over too many ranks, without a word.
How we know      The calls of the larger group part at this number, and the ranks that issued the odd call are exactly
                 the members of another group of this job.
What to do       Pass the group to the collective.
When it is fine  A call on the larger group by all of its members.
Source           torch.distributed: group=None means the default process group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.collectives import GroupCalls
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.live.rank_activity import line_of
from distdoctor.diagnosis.hang.verdict import Event, Verdict
from distdoctor.diagnosis.hang.wording import at, of_variants, short
from distdoctor.diagnosis.source.patch import replaced
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording

_GROUP = re.compile(r"\bgroup\s*=\s*([\w.]+(?:\[\w+\])?)")


@check("DD124", "wrong-group", severity=ERROR, family="hang", stalls=Stalls.FOREVER)
def examine(verdict: Verdict) -> Iterator[Finding]:
    for event in verdict.told("DD124"):
        yield _finding(verdict, event)


def _finding(verdict: Verdict, event: Event) -> Finding:
    assert event.divergence is not None
    assert event.odd is not None
    assert event.group is not None
    assert event.usual is not None
    larger, odd = event.divergence.group, event.odd
    source = verdict.recording.sources.get(odd.site.path, "")
    name = _name_of(event.group, verdict)
    edit = replaced(source, odd.site.line, ")", f", group={name})") if name and source.count("\n") else ""
    return Finding(
        title=f"issued {short(odd)} on {larger.words}, where the others are at {at(event.usual.site)}: most likely meant for "
        f"{event.group.words}",
        ranks=event.ranks,
        confidence=LIKELY,
        stalls=event.stalls,
        place=odd.site,
        places=of_variants(verdict, event),
        evidence={"group_used": larger.name, "group_meant": event.group.name, "members": list(event.group.members)},
        why=f"the ranks that issued it, {named(event.ranks)}, are exactly the members of {event.group.words}",
        prescriptions=(
            Prescription(
                "use-the-subgroup",
                change=edit or f"pass group= at {at(odd.site)}: the group of {named(event.group.members)}",
            ),
        ),
        at_ns=event.at_ns,
    )


def _name_of(group: GroupCalls, verdict: Verdict) -> str:
    """What the program calls the group where it uses it, "" when that is not to be seen."""
    for track in group.tracks.values():
        call = track.call(track.count)
        line = line_of(verdict.recording.sources, call.site) if call is not None else ""
        found = _GROUP.search(line)
        if found:
            return found[1]
    return ""


def sick() -> Recording:
    script = recording(ranks=5).group("tp", [3, 4])
    for step in range(4):
        script.collective("all_reduce", [64], group="tp", site="train.py:30 block")
        if step == 2:
            script.collective("all_reduce", [16], only=[3, 4], site="train.py:35 norm")
        script.collective("all_reduce", [8], site="train.py:41 train").step()
    return script.live()


def healthy() -> Recording:
    script = recording(ranks=5).group("tp", [3, 4])
    for _ in range(4):
        script.collective("all_reduce", [64], group="tp", site="train.py:30 block")
        script.collective("all_reduce", [16], group="tp", site="train.py:35 norm")
        script.collective("all_reduce", [8], site="train.py:41 train").step()
    return script.live()
