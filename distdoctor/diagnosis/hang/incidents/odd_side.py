"""Which side of a group that parted is the odd one: the fewer ranks, unless it was the others who broke off their routine in the
middle of a step; and of two equal sides the one that something gives away.

What a side used to do itself tells best, then whose loader ran out, then a condition on the rank in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from distdoctor.diagnosis.finding import CERTAIN, LIKELY, Confidence
from distdoctor.diagnosis.hang.alignment import CallDivergence, Variant, is_object_list
from distdoctor.diagnosis.hang.call_chains import Parted, came_another_way
from distdoctor.diagnosis.hang.decision import led_to_by
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incidents.guarding import find_guard
from distdoctor.diagnosis.hang.program import ExecutedStatements, deviation, symbol
from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.diagnosis.source.rank_choice import singled_out
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, LEAVES, Guard


@dataclass(frozen=True)
class OddSide:
    """The side of a divergence that is the odd one: the number of its variant, None where nothing tells."""

    number: int | None
    confidence: Confidence = CERTAIN
    by_rank: bool = False  # a condition on the rank in the source told it, no record did
    choice: Guard | None = None  # the expression on one line that gives this side another value


def find_odd_side(known: HangFacts, parted: CallDivergence) -> OddSide:
    """The odd side as far as records and habits tell; else the one that the source singles out, which is no proof."""
    if not parted.is_tie:
        most, fewer = parted.variants[:2]
        left = _breaks_off(known, most) and _strays(known, most, fewer) and not _strays(known, fewer, most)
        return OddSide(0, LIKELY) if left else OddSide(1)
    return _off_the_path(known, parted) or _singled_out(known, parted)


def _off_the_path(known: HangFacts, parted: CallDivergence) -> OddSide | None:
    """Which of two equal sides left the path of the other; None when nothing tells.

    Sides are equal too where members of whom nothing is on record may make the smaller one the larger; that is not likely of a
    few.
    """
    by_rank = partial(_is_outvoted, parted.group.unseen) if parted.group.unseen else is_under_a_guard
    for left_the_path in (_receives_another_list, _swallowed_an_error, _strays, _ran_out, by_rank, _strayed_before):
        suspects = [
            number for number in (0, 1) if left_the_path(known, parted.variants[number], parted.variants[1 - number])
        ]
        if len(suspects) == 1:
            by = CERTAIN if left_the_path is _ran_out else LIKELY
            return OddSide(suspects[0], by, by_rank=left_the_path is by_rank)
    sides = [len(variant.ranks) for variant in parted.variants[:2]]
    most_are_seen = sum(sides) > len(parted.group.unseen)
    return OddSide(1, LIKELY) if sides[0] > sides[1] and most_are_seen else None


def _singled_out(known: HangFacts, parted: CallDivergence) -> OddSide:
    """The side to which an expression in the source gives another value, or which a condition names."""
    for number in (0, 1):
        mine, other = parted.variants[number], parted.variants[1 - number]
        same = mine.call.site == other.call.site
        choice = singled_out(known.sources, mine.call.site, mine.ranks, other.ranks) if same else None
        if choice is not None:
            return OddSide(number, LIKELY, choice=choice)
    return OddSide(_under_a_condition(known, parted), LIKELY)


def _under_a_condition(known: HangFacts, parted: CallDivergence) -> int | None:
    """The side of the one rank that the deciding condition names, when it asks for the rank."""
    one, other = parted.variants[:2]
    sites, way = (one.call.site, other.call.site), Parted.of(known.facts, one.call, other.call)
    decision = (
        deciding_condition(known.sources, way.one, way.other, one.ranks, other.ranks, callers=way.callers)
        if sites[0] != sites[1] and known.sources
        else None
    )
    collected = any(site.function == "__del__" for site in sites)
    named = decision.rank_named if decision is not None and not collected else None
    sides = [number for number, variant in enumerate(parted.variants) if variant.ranks == (named,)]
    return sides[0] if sides else None


def _receives_another_list(_: HangFacts, mine: Variant, other: Variant) -> bool:
    """Whether it is about a list of objects that the other side gives out: the receivers' has to be as long."""
    call = mine.call
    return is_object_list(call) and call.root not in mine.ranks and call.root in other.ranks


def _swallowed_an_error(known: HangFacts, mine: Variant, other: Variant) -> bool:
    """Whether what parts them is a handler of exceptions, and the others' call is in what it guards: these never came there.
    Their own call is the next one of the program, as ever."""
    sites = mine.call.site, other.call.site
    decision = deciding_condition(known.sources, *sites) if sites[0] != sites[1] and known.sources else None
    if decision is None or not decision.handles_errors:
        return False
    return led_to_by(known.facts, decision, other.call) and not led_to_by(known.facts, decision, mine.call)


def _strays(known: HangFacts, mine: Variant, other: Variant) -> bool:
    group = known.facts.group_of(mine.call)
    if group is not None and symbol(mine.call) == symbol(other.call):
        return came_another_way(group, mine.call, other.call)
    expected = ExecutedStatements.of(known.timeline(mine.call.rank), mine.call.seq).expected()
    return expected is not None and expected == symbol(other.call) and expected != symbol(mine.call)


def _breaks_off(known: HangFacts, side: Variant) -> bool:
    """Whether the call before came in the same optimizer step: who leaves its routine here ends no loop between two turns."""
    rows = known.timeline(side.call.rank).log.calls
    before = rows[rows["seq"] < side.call.seq][-1:]
    return bool(len(before)) and 0 < side.call.step == int(before[0]["step"])


def _strayed_before(known: HangFacts, mine: Variant, other: Variant) -> bool:
    """Whether these ranks had left their own routine already, in a call on another group."""
    found = deviation(known.timeline(mine.call.rank))
    return found is not None and found[0].seq <= mine.call.seq


def _ran_out(known: HangFacts, mine: Variant, other: Variant) -> bool:
    short = {rank for uneven in known.uneven for rank in uneven.short}
    return set(mine.ranks) <= short and not set(other.ranks) & short


def is_under_a_guard(known: HangFacts, mine: Variant, other: Variant) -> bool:
    """Whether these ranks came to their call, or got past the others' call, by a condition on the rank."""
    parted = Parted.of(known.facts, mine.call, other.call)
    found = find_guard(known.sources, mine.call, other.call, mine.ranks, other.ranks, parted)
    if found is None or not found[0].on_rank:
        return False
    guard, call = found
    return guard.how == ENCLOSES if call is mine.call else guard.how == LEAVES


def _is_outvoted(unseen: Sequence[int], known: HangFacts, mine: Variant, other: Variant) -> bool:
    """Whether a condition on the rank tells that these ranks are the fewer ones, counted with those of whom nothing is on
    record; where both sides have as many, whether it is theirs."""
    parted = Parted.of(known.facts, mine.call, other.call)
    found = find_guard(known.sources, mine.call, other.call, mine.ranks, other.ranks, parted)
    if found is None or not found[0].on_rank:
        return False
    guard, call = found
    through = [guard.lets_through(rank) for rank in unseen]
    if None in through:
        return False
    joined = sum(reached is (call is mine.call) for reached in through)
    sizes = len(mine.ranks) + joined, len(other.ranks) + len(unseen) - joined
    return sizes[0] < sizes[1] or (sizes[0] == sizes[1] and is_under_a_guard(known, mine, other))
