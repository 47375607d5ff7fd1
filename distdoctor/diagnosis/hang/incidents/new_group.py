"""Ranks make a process group that others do not make, or not with the same members."""

from __future__ import annotations

from dataclasses import replace

from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.diagnosis.finding import LIKELY
from distdoctor.diagnosis.hang.decision import decision_of
from distdoctor.diagnosis.hang.group_making import Making, NamedApart, Stalled, each_its_own, made_alone, stalled
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.recording.trace.events import NewGroupDone


def judge_passed_by(known: HangFacts) -> Incident | None:
    """Some ranks make a group, and others wait for them elsewhere, or in another group."""
    living = _living(known)
    found, apart = stalled(known.facts, living), each_its_own(known.facts, living)
    if found is None or not (found.is_proven if apart is None else found.in_turn):
        return None
    begun = [known.timeline(call.rank).wall(call.begun_ns) for call in found.inside]
    waits = [known.timeline(call.rank).wall(call.entered_ns) for call in found.instead]
    incident = Incident(
        IncidentKind.PASSED_BY,
        found.odd if apart is None else apart.ranks,
        max(min(begun), min(waits, default=0)),
        waiting=known.waiting_for(set(found.odd if apart is None else apart.ranks)),
        is_closed=True,
    )
    return weigh_sides(known, incident, found) if apart is None else incident


def judge_named_apart(known: HangFacts, apart: NamedApart) -> Incident:
    """Ranks talk to a group of another name than its other members: whoever made one more group alone is the odd one."""
    alone = made_alone(Making(timeline) for timeline in known.facts.timelines.values())
    begun = [
        known.timeline(rank).wall(one.at_ns)
        for rank in apart.members
        for one in known.timeline(rank).log.noted(NewGroupDone)
        if tuple(sorted(one.members)) == apart.members
    ]
    ranks = alone.ranks if alone is not None else apart.members
    return Incident(IncidentKind.PASSED_BY, ranks, min(begun), is_tie=alone is None)


def find_group_in_the_making(known: HangFacts) -> Stalled | None:
    """The group that some ranks make without others; None where each side makes one of its own."""
    living = _living(known)
    return stalled(known.facts, living) if each_its_own(known.facts, living) is None else None


def _living(known: HangFacts) -> dict[int, Timeline]:
    timelines = known.facts.timelines.items()
    return {rank: one for rank, one in timelines if rank not in known.endings or Making(one).gave_up}


def weigh_sides(known: HangFacts, incident: Incident, found: Stalled) -> Incident:
    """The incident of a group in the making, where as many ranks came as stayed away: the one that a condition on the rank
    names is the odd one, else there is none."""
    if not found.is_tie:
        return incident
    both = tuple(sorted({*found.makers, *found.absent}))
    decision = decision_of(known.facts, known.pairs, incident)
    named = decision.rank_named if decision is not None else None
    if named in both and len(both) == 2:
        return replace(incident, ranks=(named,), sides=LIKELY)
    return replace(incident, ranks=both, is_tie=True)
