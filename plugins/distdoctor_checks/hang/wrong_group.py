"""
DD124 wrong-group: a collective was called on the default group where a sub-group was meant.

What it means    Exactly the members of one sub-group issued a collective on a larger group, whose other members have no such
                 call: `group=` was forgotten.
Why it hurts     The larger group waits for ranks that have no reason to enter the call. If they happen to issue a call that
                 fits, the sum silently includes too many ranks.
How we know      The calls of the larger group diverge at this number, and the ranks that issued the odd call are exactly the
                 members of another group of this job.
What to do       Pass the sub-group to the collective.
When it is fine  A call on the larger group by all of its members.
Source           torch.distributed: group=None means the default process group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.collectives import GroupCalls
from distdoctor.diagnosis.facts.timeline import is_pairwise
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.rank_activity import line_of
from distdoctor.diagnosis.hang.played import agrees_without
from distdoctor.diagnosis.hang.program import ADDED, SKIPPED, SWAPPED, UNCLEAR
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wait_for import Wait
from distdoctor.diagnosis.hang.wording import (
    at,
    by_site,
    deciding_places,
    of_variants,
    short,
    tipped,
)
from distdoctor.diagnosis.source.call_edits import keyword_of, keyword_set, only_call
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording, SourceLine
from distdoctor.testing import recording

_GROUP = re.compile(r"\bgroup\s*=\s*([\w.]+(?:\[\w+\])?)")


@check("DD124", "wrong-group", severity=ERROR, family="hang", stalls=Stalls.FOREVER, specificity=40)
def examine(verdict: Verdict) -> Iterator[Finding]:
    for incident in verdict.of_kind(IncidentKind.DIVERGED):
        meant = _meant_for_a_subgroup(verdict, incident)
        if meant is not None and meant.divergence is not None:
            yield _finding(verdict, meant, meant.divergence.group)
    for incident in verdict.of_kind(IncidentKind.RING):
        for wait in incident.cycle:
            meant = _waits_in_the_larger(verdict, incident, wait)
            if meant is not None and wait.group is not None:
                yield _finding(verdict, meant, wait.group)
                break
    for incident in verdict.of_kind(IncidentKind.STRAYED):
        larger = verdict.facts.group_of(incident.usual) if incident.usual is not None else None
        meant = _called_by_a_subgroup(verdict, incident, larger) if larger is not None else None
        if meant is not None and larger is not None:
            yield _finding(verdict, meant, larger)


def _waits_in_the_larger(verdict: Verdict, incident: Incident, wait: Wait) -> Incident | None:
    """The ring as a call on the wrong group, when exactly the members of a smaller one wait in a collective that no other rank
    ever issued, and those wait for them in sends and receives."""
    others = [one for one in incident.cycle if one is not wait]
    if wait.group is None or is_pairwise(wait.call) or not all(is_pairwise(one.call) for one in others):
        return None
    smaller = 1 < len(wait.ranks) < len(wait.group.members)
    meant = [group for group in verdict.facts.groups if smaller and set(group.members) == set(wait.ranks)]
    if not meant or _passed(verdict, wait.on, wait.call.site):
        return None
    return replace(
        incident.decided_by(incident.choice), ranks=wait.ranks, odd=wait.call, usual=others[0].call, group=meant[0]
    )


def _called_by_a_subgroup(verdict: Verdict, incident: Incident, larger: GroupCalls) -> Incident | None:
    """The incident as a call on the wrong group, when exactly the members of a smaller group issued the collective that a rank is
    said to have left out, and no other rank ever did."""
    left_out, odd = incident.usual, incident.odd
    if left_out is None or odd is None or is_pairwise(left_out):
        return None
    came = tuple(sorted(rank for rank, track in larger.tracks.items() if track.count >= left_out.number))
    group = _group_of_exactly(verdict, came, larger)
    rest = [rank for rank in larger.members if rank not in came]
    if group is None or _passed(verdict, rest, left_out.site):
        return None
    return replace(incident.decided_by(incident.choice), ranks=came, odd=left_out, usual=odd, group=group, is_tie=False)


def _meant_for_a_subgroup(verdict: Verdict, incident: Incident) -> Incident | None:
    """The incident as a call on the wrong group, when exactly the members of a smaller one issued what no other rank ever did.

    They may be the majority: then the others did not skip the call, they never had one there.
    """
    assert incident.divergence is not None
    variants, how = incident.divergence.variants, incident.how
    if len(variants) > 2 or how == SWAPPED or incident.replaces:
        return None
    found = []
    for mine, other in (variants, variants[::-1]):
        added = how in (ADDED, UNCLEAR) if mine.call is incident.odd else how in (SKIPPED, UNCLEAR)
        group = _group_of_exactly(verdict, mine.ranks, incident.divergence.group)
        if added and group is not None and not _passed(verdict, other.ranks, mine.call.site):
            one = replace(incident.decided_by(incident.choice), ranks=mine.ranks, odd=mine.call, usual=other.call)
            found.append(replace(one, group=group, is_tie=False))
    return found[0] if len(found) == 1 else None


def _group_of_exactly(verdict: Verdict, ranks: tuple[int, ...], larger: GroupCalls) -> GroupCalls | None:
    """The group of these ranks; None where it is one of several alike: replicas that part do so along such groups."""
    if not 1 < len(ranks) < len(larger.members):
        return None
    alike = [group for group in verdict.facts.groups if len(group.members) == len(ranks)]
    if any(set(ranks).isdisjoint(group.members) for group in alike):
        return None
    return next((group for group in alike if set(group.members) == set(ranks)), None)


def _passed(verdict: Verdict, ranks: Iterable[int], site: SourceLine) -> bool:
    """Whether one of these ranks has a call at this line on record."""
    logs = [verdict.timeline(rank).log for rank in ranks]
    return any(site in {log.site(number) for number in set(log.calls["site"].tolist())} for log in logs)


def _finding(verdict: Verdict, incident: Incident, larger: GroupCalls) -> Finding:
    assert incident.odd is not None
    assert incident.group is not None
    assert incident.usual is not None
    odd, ring = incident.odd, [call for wait in incident.cycle for call in wait.calls]
    places = ring or ([odd, incident.usual] if incident.divergence is None else [])
    return Finding(
        title=f"issued {short(odd)} on {larger.words}, where the others are at {at(incident.usual.site)}: most likely meant for "
        f"{incident.group.words}",
        ranks=incident.ranks,
        confidence=LIKELY,
        stalls=incident.stalls,
        place=odd.site,
        places=(*by_site(verdict, places), *deciding_places(incident)) if places else of_variants(verdict, incident),
        evidence={
            "group_used": larger.name,
            "group_meant": incident.group.name,
            "members": list(incident.group.members),
        }
        | tipped(incident),
        why=f"the ranks that issued it, {named(incident.ranks)}, are exactly the members of {incident.group.words}",
        prescriptions=(
            Prescription(
                "use-the-subgroup",
                change=f"pass group= at {at(odd.site)}: the group of {named(incident.group.members)}",
                edits=_edits(verdict, incident.group, larger, odd),
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _edits(verdict: Verdict, meant: GroupCalls, used: GroupCalls, odd: Call) -> tuple[Edit, ...]:
    """The call given its group, where the calls on record then agree in both."""
    sources, name = verdict.recording.sources, _name_of(meant, verdict)
    call = only_call(sources, odd.site, odd.op.word)
    if not name or call is None or keyword_of(call, "group") is not None:
        return ()
    agree = agrees_without(used, odd.site) and agrees_without(meant, odd.site)
    return keyword_set(odd.site.path, call, "group", name) if agree else ()


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
