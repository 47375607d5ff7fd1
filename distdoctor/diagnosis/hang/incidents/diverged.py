"""The members of a group issued different calls: where that began, who is the odd one, and what can have parted them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.diagnosis.hang.alignment import REDUCTION, CallDivergence, Variant
from distdoctor.diagnosis.hang.call_chains import Parted
from distdoctor.diagnosis.hang.decision import JOIN
from distdoctor.diagnosis.hang.earlier_divergence import not_joined, where_lines_part, where_order_parts
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.incidents.guarding import find_guard, put_under
from distdoctor.diagnosis.hang.incidents.odd_side import find_odd_side, is_under_a_guard
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.program import (
    ADDED,
    REPLACED,
    SKIPPED,
    UNCLEAR,
    CallEdit,
    ExecutedStatements,
    departure,
    is_repeated,
    issued_from,
    line_of,
    symbol,
)
from distdoctor.diagnosis.hang.uneven import find_uneven_pass
from distdoctor.diagnosis.source.rank_guard import alternatives
from distdoctor.recording.recording import Call


def judge_divergence(known: HangFacts, parted: CallDivergence) -> Incident:
    """The incident of a group whose members issued different calls."""
    if parted.differs != REDUCTION:
        surplus = not_joined(parted, known.sources)
        if surplus is not None:
            return _not_joined(known, *surplus)
        parted = _where_lines_part(known, parted)
    usual, odd = parted.variants[0], parted.variants[1]
    side = find_odd_side(known, parted)
    if side.number == 0:
        usual, odd = odd, usual
    is_tie = side.number is None
    ranks = odd.ranks if side.number == 0 or (parted.is_tie and not is_tie) else parted.odd_ranks
    incident = Incident(
        IncidentKind.DIVERGED,
        ranks,
        parted.at_ns,
        divergence=parted,
        odd=odd.call,
        usual=usual.call,
        group=parted.group,
        waiting=known.waiting_in(parted.group),
        is_tie=is_tie,
        choice=side.choice,
        guard=side.choice,
        sides=CERTAIN if is_tie else side.confidence,
    )
    explained = _explained(known, replace(incident, departure=_departure(known, incident)))
    return replace(explained, hint=explained.rank_word) if side.by_rank or side.choice is not None else explained


def _where_lines_part(known: HangFacts, parted: CallDivergence) -> CallDivergence:
    """The divergence, or the beginning of it; two branches of one condition are no parting."""
    earlier = where_lines_part(parted, partial(is_under_a_guard, known))
    usual, odd = earlier.variants[0], earlier.variants[1]
    if alternatives(known.sources, odd.call.site, usual.call.site) is not None:
        return parted
    return where_order_parts(parted) if earlier is parted else earlier


def _not_joined(known: HangFacts, parted: CallDivergence, issued: Variant, answered: Variant) -> Incident:
    """A collective inside join() that it does not stand in for: the ranks that have run out of inputs are the odd ones, and
    the line to mend is that of the others."""
    return Incident(
        IncidentKind.STRAYED,
        answered.ranks,
        parted.at_ns,
        divergence=parted,
        departure=CallEdit(ADDED),
        odd=issued.call,
        usual=answered.call,
        group=parted.group,
        waiting=known.waiting_in(parted.group),
        hint=JOIN,
    )


def _departure(known: HangFacts, incident: Incident) -> CallEdit:
    assert incident.odd is not None
    assert incident.usual is not None
    theirs, mine = known.timeline(incident.usual.rank), known.timeline(incident.odd.rank)
    if _in_one_helper(incident.odd, incident.usual, Parted.of(known.facts, incident.odd, incident.usual)):
        return CallEdit(UNCLEAR)
    past = ExecutedStatements.of(theirs, incident.usual.seq)
    if past.distance(symbol(incident.usual), symbol(incident.odd)) is None:
        own = ExecutedStatements.of(mine, incident.odd.seq)
        past = own if len(own.symbols) > len(past.symbols) else past
    again = is_repeated(mine, incident.odd)
    return departure(
        issued_from(theirs, incident.usual.seq), issued_from(mine, incident.odd.seq), past, is_repeated=again
    )


def _explained(known: HangFacts, incident: Incident) -> Incident:
    """The incident with what can have parted the ranks: an uneven pass, a condition in the source."""
    odd, usual = incident.odd, incident.usual
    assert odd is not None
    assert usual is not None
    branch = alternatives(known.sources, odd.site, usual.site)
    parted = Parted.of(known.facts, odd, usual)
    same_place = odd.site == usual.site or branch is not None or incident.how == REPLACED
    same_place = same_place or (_as_ever(known, odd) and _as_ever(known, usual))
    same_place = same_place and not _in_one_helper(odd, usual, parted)
    incident = replace(
        incident,
        uneven=find_uneven_pass(known.uneven, incident.ranks, incident.at_ns),
        branch=branch,
        in_place=incident.how != SKIPPED and same_place,
    )
    if incident.replaces:
        return incident
    guard = find_guard(known.sources, odd, usual, incident.ranks, _others(known, incident), parted)
    if guard is None:
        return incident
    return put_under(incident, *guard, path=(parted.one if guard[1] is odd else parted.other).path)


def _in_one_helper(odd: Call, usual: Call, parted: Parted) -> bool:
    """Whether both are one statement of a helper, which each side called from another line."""
    return symbol(odd) == symbol(usual) and parted.one != parted.other


def _as_ever(known: HangFacts, call: Call) -> bool:
    """Whether the rank always went through this line at this point: then it is the arguments that are wrong."""
    expected = ExecutedStatements.of(known.timeline(call.rank), call.seq).expected() if call.line_recorded else None
    return expected is not None and line_of(expected) == line_of(symbol(call))


def _others(known: HangFacts, incident: Incident) -> tuple[int, ...]:
    assert incident.divergence is not None
    return tuple(r for variant in incident.divergence.variants for r in variant.ranks if r not in incident.ranks)
