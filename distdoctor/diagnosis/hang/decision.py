"""What in the source most likely let the ranks part: the condition that sent them to two calls, or the value of an argument.

Where two ranks have always gone through different lines (a sender and its receiver, a first rank with a loop of its own), the
line between them decides nothing. There it is asked what used to answer the call that waits now, and why that was not issued.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives, Track
from distdoctor.diagnosis.hang.alignment import ROOT
from distdoctor.diagnosis.hang.call_chains import Parted, callers_of, sent_otherwise
from distdoctor.diagnosis.hang.ending import LEFT
from distdoctor.diagnosis.hang.group_making import Making, NewGroup
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.point_to_point import Pairs
from distdoctor.diagnosis.source.deciding import deciding_condition, deciding_count
from distdoctor.diagnosis.source.deciding_value import GROUP, MEMBERS, SHAPE, TAG, deciding_value, most_telling_value
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.left_out_turns import left_out_turn
from distdoctor.diagnosis.source.loop_exits import fails
from distdoctor.diagnosis.source.message_order import order_question
from distdoctor.diagnosis.source.source_file import SourceFile, source_file
from distdoctor.recording.recording import Call, SourceLine
from distdoctor.recording.trace.events import Exiting, InitBegun
from distdoctor.recording.trace.layout import POINT_TO_POINT, Op

JOIN = "join"  # the hint of an incident in which join() answered a collective of the user's
TURNS = 4096  # calls that are looked back at, for turns of a loop
TWICE = 2  # passes over a loader that show how long it is
PAST = 256  # calls of a group that are looked back at


def decision_of(facts: Collectives, pairs: Pairs, incident: Incident) -> Decision | None:
    """The condition that most likely sent the ranks to different calls, or gave one call different arguments."""
    try:
        found = _decision_of(facts, pairs, incident) if facts.recording.sources else None
    except RecursionError:  # generated code
        return None
    return None if found is not None and _ended_otherwise(incident, found) else found


def _ended_otherwise(incident: Incident, decision: Decision) -> bool:
    """Whether a condition leads to an exit with another code than 0, and the rank that left ended with 0."""
    left = incident.ending is not None and incident.ending.how == LEFT
    return left and decision.exit is not None and fails(decision.exit[1])


def _decision_of(facts: Collectives, pairs: Pairs, incident: Incident) -> Decision | None:
    if incident.kind is IncidentKind.PASSED_BY:
        return _of_group(facts, incident)
    if incident.kind is IncidentKind.FAILED:
        return _of_refusal(facts, incident)
    if incident.kind is IncidentKind.NEVER_CAME:
        return _of_absence(facts, incident)
    if incident.left_out is not None and incident.odd is not None:
        return _of_what_was_left_out(facts, incident.left_out, incident.odd)
    one, other = sides(incident)
    if one is None:
        return None
    if incident.is_one_way:
        return _of_tag(facts, pairs, incident) or order_question(facts.recording.sources, one.site)
    sites, groups = ({getattr(wait.call, name) for wait in incident.cycle} for name in ("site", "group"))
    if len(sites) == 1 < len(groups):
        return deciding_value(facts.recording.sources, one.site, GROUP)  # one line on several groups, in several orders
    turn = _left_out_turn(facts, incident, one, other)
    if turn is not None:
        return turn
    by_message = _of_message(facts, pairs, incident)
    by_past = _by_past(facts, pairs, one, other) if _is_innermost(facts, one) else None
    return by_message or by_past or _by_lines(facts, incident, one, other) or _by_exchanges(facts, incident, one)


def _by_exchanges(facts: Collectives, incident: Incident, one: Call) -> Decision | None:
    """What decides how often a line exchanges messages that one rank has come to more or less often than all others."""
    if incident.kind is not IncidentKind.STRAYED:
        return None
    line, *callers = sent_otherwise(facts, one.rank) or (SourceLine(),)
    return deciding_count(facts.recording.sources, line, one.site, callers) if line else None


def _of_what_was_left_out(facts: Collectives, left_out: Call, odd: Call) -> Decision | None:
    """What decides how often a message comes, or, where one turn of a loop passes both lines, what led past the one."""
    parted = Parted.in_one_body(facts, left_out, odd) or Parted.of(facts, left_out, odd)
    sources, (mine, theirs) = facts.recording.sources, parted.callers
    if parted.other.path == parted.one.path and parted.other.line < parted.one.line:  # another turn of a loop before it
        again = deciding_count(sources, parted.other, parted.one, theirs)
        if again is not None:
            return again
    return deciding_count(sources, parted.one, parted.other, mine) or (
        deciding_condition(sources, parted.other, parted.one, [odd.rank], callers=(theirs, mine)) if theirs else None
    )


def _left_out_turn(facts: Collectives, incident: Incident, one: Call, other: Call | None) -> Decision | None:
    """What led into the next turn of a loop, past what each turn does, where ranks came to a call of every so many turns after
    fewer of them than ever before."""
    group = facts.group_of(one) if incident.kind is IncidentKind.DIVERGED and other is not None else None
    if other is None or group is None or one.rank not in group.tracks:
        return None
    log, rows = group.tracks[one.rank].timeline.log, group.tracks[one.rank].rows
    sites = [log.site(int(site)) for site in rows["site"][rows["number"] <= one.number][-TURNS:]]
    ends = [at for at, site in enumerate(sites) if site == one.site]
    since = [0, *(at + 1 for at in ends)] if len(sites) < TURNS else [at + 1 for at in ends]
    turns = [sites[begin:end].count(other.site) for begin, end in pairwise(since)]
    if len(turns) < 2 or not 0 < turns[-1] < min(turns[:-1]):
        return None
    return left_out_turn(facts.recording.sources, other.site, one.site)


def led_to_by(facts: Collectives, decision: Decision, call: Call) -> bool:
    """Whether the statement whose condition decides holds a call, or what led to it, as far as its callers are on record."""
    file = source_file(facts.recording.sources, decision.site.path)
    way = (call.site, *callers_of(facts, call))
    return decision.call in way or (file is not None and any(_is_under(file, decision.site, one) for one in way))


def _is_under(file: SourceFile, test: SourceLine, site: SourceLine) -> bool:
    """Whether a line stands in the statement whose condition is in the line `test`, or in what a handler there guards."""
    tests = [node for node in file.nodes(ast.If, ast.While) if node.test.lineno == test.line]
    spans = [(node.body[0].lineno, node.end_lineno or site.line) for node in tests]
    guarded = (node for node in file.nodes(ast.Try) if any(one.lineno == test.line for one in node.handlers))
    spans += [(node.body[0].lineno, node.body[-1].end_lineno or site.line) for node in guarded]
    return site.path == test.path and any(first <= site.line <= last for first, last in spans)


def _is_innermost(facts: Collectives, call: Call) -> bool:
    """Whether the site of a call is its own line, and not that of a caller."""
    group = facts.group_of(call) if call.op not in POINT_TO_POINT else None
    recorded = group.tracks[call.rank].call(call.number) if group is not None else None
    return recorded is None or recorded.site == call.site


def _of_group(facts: Collectives, incident: Incident) -> Decision | None:
    """The condition under which only some ranks make a group, or what each of them makes it of."""
    sources, making = facts.recording.sources, {rank: Making(one) for rank, one in facts.timelines.items()}
    made = {rank: [call for call in one.calls if not call.is_local] for rank, one in making.items()}
    for calls in zip(*made.values(), strict=False):
        if len({(call.members, call.site) for call in calls}) > 1:
            return _of_makers(facts, calls)
    by_count = sorted(made, key=lambda rank: len(made[rank]))
    fewest, most = by_count[0], by_count[-1]
    if len(made[fewest]) < len(made[most]):
        surplus = made[most][len(made[fewest])]
        return deciding_condition(sources, surplus.site, None, [most], [fewest])
    inside = [call for rank, one in making.items() if rank not in incident.ranks and (call := one.inside)]
    return deciding_condition(sources, inside[0].site, None) if inside else None


def _of_makers(facts: Collectives, calls: tuple[NewGroup, ...]) -> Decision | None:
    """What sent ranks to two lines that make a group, or gave one line other members."""
    sources, first = facts.recording.sources, calls[0]
    other = next((call for call in calls if call.site != first.site), None)
    if other is None:
        return deciding_value(sources, first.site, MEMBERS)
    mine, theirs = ([call.rank for call in calls if call.site == one.site] for one in (first, other))
    return deciding_condition(sources, first.site, other.site, mine, theirs)


# DistributedDataParallel compares the parameters of all ranks when it is made, and raises where they differ (torch 2.11-2.15).
_REFUSED_FOR_SIZE = re.compile(
    r"not to match sizes of the same param|same number of (params|parameters)|expected same number"
)


def _of_refusal(facts: Collectives, incident: Incident) -> Decision | None:
    """What made the models differ that a wrapper refused for their sizes."""
    ending = incident.ending
    if ending is None or not _REFUSED_FOR_SIZE.search(ending.words):
        return None
    return deciding_value(facts.recording.sources, ending.site, SHAPE)


def _of_absence(facts: Collectives, incident: Incident) -> Decision | None:
    """What kept ranks that have ended from init_process_group, where the others wait; None where one of them may only be late."""
    timelines = facts.timelines
    gone = [rank for rank in incident.ranks if rank in timelines and timelines[rank].log.has_noted(Exiting)]
    inside = [rank for rank in timelines if rank not in incident.ranks]
    begun = [one.site for rank in inside for one in timelines[rank].log.noted(InitBegun)]
    if len(gone) < len(incident.ranks) or not begun:
        return None
    return deciding_condition(facts.recording.sources, begun[0], None, inside, gone)


def _of_tag(facts: Collectives, pairs: Pairs, incident: Incident) -> Decision | None:
    """What gave a message another tag than the receive asks for that would take it."""
    sent = ((wait.call, pairs.mistagged(wait.call)) for wait in incident.cycle)
    sites = next(([one.site, call.site] for call, one in sent if one is not None), [])
    return most_telling_value(facts.recording.sources, sites, TAG)


def _of_message(facts: Collectives, pairs: Pairs, incident: Incident) -> Decision | None:
    """What gave a message another tag than its receiver asks for, or another receiver."""
    waits = [wait.call for wait in (*incident.cycle, *incident.waiting)] or [one for one in sides(incident) if one]
    for call in waits:
        if call.op is not Op.RECV:
            continue
        sent = pairs.sends.get((call.group, call.root, call.rank), [])
        received = pairs.receives.get((call.group, call.root, call.rank), [])
        unread = [one for one in sent if one.tag not in {other.tag for other in received[: len(sent)]}]
        if unread and call.tag not in {one.tag for one in sent}:
            return most_telling_value(facts.recording.sources, [unread[-1].site, call.site], TAG)
        if not sent:
            others = [one.site for lane, calls in pairs.sends.items() if lane[1] == call.root for one in calls[-PAST:]]
            return most_telling_value(facts.recording.sources, others, ROOT)
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
    parted = Parted.of(facts, one, other)
    there = parted.other if other is not None else None
    by_value = deciding_value(sources, one.site, differs) if parted.one == there else None
    been = _been(facts, one, others), other is not None and _been(facts, other, mine)
    even = _even_loops(facts)
    decision = by_value or deciding_condition(
        sources, parted.one, there, mine, others, been=been, callers=parted.callers, even=even
    )
    if decision is None and other is not None and {one.op, other.op} <= POINT_TO_POINT:
        return deciding_value(sources, one.site, ROOT)
    return decision


def _even_loops(facts: Collectives) -> frozenset[tuple[str, int]]:
    """(path, line) of loops over a loader that went to their end each time, with as many batches on all ranks: how long they are
    parts nobody."""
    seen: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    left: set[tuple[str, int]] = set()
    for rank, timeline in facts.timelines.items():
        log = timeline.log
        for row in log.passes:
            site = log.site(int(row["loop_site"]))
            place = (site.path, site.line)
            if row["ended_ns"]:
                seen[place][rank].append(int(row["batches"]))
            elif int(row["seq"]) < int(log.passes["seq"][-1]):
                left.add(place)  # by `break`
    return frozenset(
        place
        for place, by_rank in seen.items()
        if place not in left
        and by_rank.keys() == facts.timelines.keys()
        and all(len(batches) >= TWICE for batches in by_rank.values())
        and len({count for batches in by_rank.values() for count in batches}) == 1
    )


def _been(facts: Collectives, call: Call, ranks: Sequence[int]) -> bool:
    """Whether each of these ranks has made a call of this line before, in the same group."""
    group = facts.group_of(call)
    if group is None or not ranks or not call.site:
        return False
    return all(rank in group.tracks and _has_been(group.tracks[rank], call) for rank in ranks)


def _has_been(track: Track, call: Call) -> bool:
    log, rows = track.timeline.log, track.rows
    earlier = rows["site"][rows["number"] < call.number][-PAST:]
    return any(log.site(int(site)) == call.site for site in np.unique(earlier))


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
