"""Ranks left in order: while others needed them, or only for their process to die after that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.hang.earlier_divergence import where_one_was_added
from distdoctor.diagnosis.hang.ending import LEFT
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.incidents.diverged import judge_divergence
from distdoctor.diagnosis.hang.incidents.guarding import find_guard, put_under
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.missed_calls import MissedCalls
from distdoctor.diagnosis.hang.program import ADDED, CallEdit, ExecutedStatements, symbol
from distdoctor.diagnosis.hang.uneven import find_uneven_pass
from distdoctor.recording.recording import SourceLine


def find_leavers(known: HangFacts) -> Iterator[Incident]:
    """Ranks that left in order while others need them."""
    missed_calls = MissedCalls(known)
    for ending in known.endings.values():
        if ending.how != LEFT or ending.rank not in known.facts.timelines:
            continue
        missed = missed_calls.first_missed_by(ending.rank)
        if missed is None:
            continue
        needed_at, usual, group = missed
        added = where_one_was_added(group, usual.rank, ending.rank) if group is not None else None
        if added is not None:
            yield judge_divergence(known, added)
            continue
        incident = Incident(
            IncidentKind.LEFT,
            (ending.rank,),
            max(needed_at, ending.at_ns),
            ending=ending,
            usual=usual,
            group=group,
            waiting=known.waiting_for({ending.rank}),
        )
        uneven = find_uneven_pass(known.uneven, incident.ranks, incident.at_ns)
        yield _surplus(known, incident) or replace(incident, uneven=uneven)


def _surplus(known: HangFacts, left: Incident) -> Incident | None:
    """The incident seen the other way: few ranks issued a call that is no part of their routine, and most never did."""
    call, group = left.usual, left.group
    if call is None or group is None:
        return None
    issued = tuple(rank for rank, track in sorted(group.tracks.items()) if track.count >= call.number)
    if 2 * len(issued) > len(group.tracks):
        return None
    past = ExecutedStatements.of(known.timeline(call.rank), call.seq)
    if past.knows(symbol(call)) or past.expected() is None:
        return None
    guard = find_guard(known.sources, call, replace(call, site=SourceLine()), issued, left.ranks)
    if 2 * len(issued) == len(group.tracks) and guard is None:
        return None  # one of two called it and one has left: that it was called for the first time proves nothing
    incident = replace(left, kind=IncidentKind.STRAYED, ranks=issued, odd=call, usual=None, departure=CallEdit(ADDED))
    return incident if guard is None else put_under(incident, *guard)


def find_late_crashes(known: HangFacts) -> Iterator[Incident]:
    """Ranks whose script had ended, and whose process died of itself after that."""
    crashed = [one for one in known.endings.values() if one.how == LEFT and one.signal]
    for number in sorted({one.signal for one in crashed}):
        alike = [one for one in crashed if one.signal == number]
        yield Incident(
            IncidentKind.DIED_LATE,
            tuple(one.rank for one in alike),
            min(one.at_ns for one in alike),
            ending=alike[0],
        )
