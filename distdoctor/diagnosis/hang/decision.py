"""What in the source most likely let the ranks part: the condition that sent them to two calls, or the value of an argument.

Where two ranks have always gone through different lines (a sender and its receiver, a first rank with a loop of its own), the
line between them decides nothing. There it is asked what used to answer the call that waits now, and why that was not issued.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.hang.alignment import ROOT
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.point_to_point import Pairs
from distdoctor.diagnosis.source.deciding import Decision, deciding_condition, deciding_value
from distdoctor.recording.recording import Call, SourceLine
from distdoctor.recording.trace.layout import POINT_TO_POINT

JOIN = "join"  # the hint of an incident in which join() answered a collective of the user's
PAST = 256  # calls of a group that are looked back at


def decision_of(facts: Collectives, pairs: Pairs, incident: Incident) -> Decision | None:
    """The condition that most likely sent the ranks to different calls, or gave one call different arguments."""
    one, other = sides(incident)
    if not facts.recording.sources or one is None:
        return None
    try:
        return _by_past(facts, pairs, one, other) or _by_lines(facts, incident, one, other)
    except RecursionError:  # generated code
        return None


def sides(incident: Incident) -> tuple[Call | None, Call | None]:
    """The calls that ranks are in instead of one another's; the second is None where it is missing altogether."""
    if incident.pair is not None:
        return incident.pair
    if incident.odd is not None:
        return incident.odd, incident.usual
    if incident.cycle:
        first = incident.cycle[0].call
        return first, next((wait.call for wait in incident.cycle if wait.call.site != first.site), first)
    return incident.usual, None


def _by_lines(facts: Collectives, incident: Incident, one: Call, other: Call | None) -> Decision | None:
    sources = facts.recording.sources
    rest = [] if other is None else [rank for rank in facts.timelines if rank not in incident.ranks]
    mine, others = (rest, incident.ranks) if incident.hint == JOIN else (incident.ranks, rest)
    differs = incident.divergence.differs if incident.divergence is not None else ""
    there = other.site if other is not None else None
    by_value = deciding_value(sources, one.site, differs) if one.site == there else None
    decision = by_value or deciding_condition(sources, one.site, there, mine, others)
    if decision is None and other is not None and {one.op, other.op} <= POINT_TO_POINT:
        return deciding_value(sources, one.site, ROOT)
    return decision


def _by_past(facts: Collectives, pairs: Pairs, one: Call, other: Call | None) -> Decision | None:
    """The condition between the call of a rank and the one with which it used to answer the other's, where these differ."""
    if other is None or one.rank == other.rank:
        return None
    for mine, theirs in ((one, other), (other, one)):
        for usual in usual_answers(facts, pairs, theirs, mine.rank):
            if usual not in (mine.site, theirs.site):
                decision = deciding_condition(facts.recording.sources, mine.site, usual, [mine.rank], [mine.rank])
                if decision is not None:
                    return decision
    return None


def usual_answers(facts: Collectives, pairs: Pairs, call: Call, rank: int) -> Iterator[SourceLine]:
    """The lines in which a rank has so far met the calls of this line, the latest first."""
    found = _received if call.op in POINT_TO_POINT else _met
    yield from dict.fromkeys(site for site in found(facts, pairs, call, rank) if site)


def _met(facts: Collectives, _: Pairs, call: Call, rank: int) -> Iterator[SourceLine]:
    group = facts.group_of(call)
    track = group.tracks.get(rank) if group is not None else None
    if group is None or track is None:
        return
    rows = group.tracks[call.rank].rows
    row = group.tracks[call.rank].row(call.number)
    if row is None:
        return
    alike = rows["number"][(rows["site"] == row["site"]) & (rows["number"] < call.number)][-PAST:]
    log = track.timeline.log
    for number in np.flip(alike):
        answer = track.row(int(number))
        if answer is not None:
            yield log.site(int(answer["site"]))


def _received(facts: Collectives, pairs: Pairs, call: Call, rank: int) -> Iterator[SourceLine]:
    for (group, sender, receiver), sent in pairs.sends.items():
        if group != call.group or {sender, receiver} != {call.rank, rank}:
            continue
        got = pairs.receives.get((group, sender, receiver), [])
        met = [(a, b) for a, b in zip(sent, got, strict=False) if a.tag == b.tag][-PAST:]
        for a, b in reversed(met):
            mine, answer = (a, b) if call.rank == sender else (b, a)
            if mine.site == call.site and mine.op is call.op and mine.seq < call.seq:
                yield answer.site
