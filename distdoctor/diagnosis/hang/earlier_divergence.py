"""Where ranks parted before anything showed it: calls of equal size that one of them issued from another line, or from the same
line of a function that was called from elsewhere.

A rank that leaves out, or adds, a sum of one number is answered by the next sum of one number; one that runs a sharded model by
itself is answered by the gathers of the others' next step. Sizes that disagree come later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np

from distdoctor.diagnosis.facts.collectives import GroupCalls
from distdoctor.diagnosis.hang.alignment import OPERATION, CallDivergence, Variant
from distdoctor.diagnosis.hang.call_chains import came_another_way, words_of
from distdoctor.diagnosis.hang.program import ExecutedStatements, is_reordered, issued_from, symbol
from distdoctor.diagnosis.source.rank_guard import statement_at
from distdoctor.recording.recording import Call, SourceLine

FURTHEST_JOINED = 4096  # calls that ranks may issue after the first one has run out of inputs
FURTHEST = 8  # calls back; a routine in which lines differ between ranks all the time has no such beginning
FURTHEST_ON_THE_WAY = 512  # the same of lines that agree and are reached in other ways: the layers of one forward pass
_JOIN = re.compile(r"^\s*with\b.*\b[Jj]oin\(")


def where_lines_part(parted: CallDivergence, is_under_a_guard: Callable[[Variant, Variant], bool]) -> CallDivergence:
    """The divergence at the first of the equal calls before it whose lines differ, or the ways to them, where one side alone left
    its own routine, or where no past tells, alone came there by a condition on the rank."""
    if len(parted.variants) != 2:
        return parted
    beginning = _where_ways_part(parted)
    for number, calls in _before(parted, FURTHEST) if beginning == parted.number else ():
        if calls[0].site == calls[1].site:
            break
        beginning = number
    first = _at(parted, beginning) if beginning < parted.number else None
    if first is None or not all(len({call.site for call in variant.calls}) == 1 for variant in first.variants):
        return parted
    usual, odd = first.variants
    sides = (usual, odd), (odd, usual)
    strays = [_strays(parted.group, mine.call, other.call) for mine, other in sides]
    if not any(strays):
        strays = [is_under_a_guard(mine, other) for mine, other in sides]
    return first if strays == [False, True] or (parted.is_tie and strays == [True, False]) else parted


def _where_ways_part(parted: CallDivergence) -> int:
    """The first number of those before it, back to one that is the same for both sides, at which the ways to the calls differ;
    its own where there is none."""
    one, other = (parted.group.tracks[variant.call.rank] for variant in parted.variants)
    first = max(one.first, other.first, parted.number - FURTHEST_ON_THE_WAY)
    ways = [words_of(track, first, parted.number - 1) for track in (one, other)]
    if first >= parted.number or len(ways[0]) != len(ways[1]):
        return parted.number
    same = np.flatnonzero((ways[0] == ways[1]) | (ways[0] == 0) | (ways[1] == 0))
    if not len(same):
        return 1 if first == 1 else parted.number
    return first + int(same[-1]) + 1


def where_one_was_added(group: GroupCalls, waiting: int, left: int) -> CallDivergence | None:
    """Where the calls of a rank that waits at the end have one more line in between than those of one that has left, all of equal
    calls: from there on its lines are those of the other one, a call later. None where that is not so."""
    ahead, behind = group.tracks[waiting], group.tracks[left]
    number = last = behind.count
    while number > 0 and (one := ahead.call(number)) and (other := behind.call(number)) and one.site != other.site:
        number -= 1
    first = number + 1
    lines = [(ahead.call(at + 1), behind.call(at)) for at in range(first, last + 1)]
    if first > last or not all(one and other and one.site == other.site for one, other in lines):
        return None
    sides: dict[SourceLine, list[Call]] = {}
    for track in group.tracks.values():
        call = track.call(first)
        if call is None:
            return None
        sides.setdefault(call.site, []).append(call)
    variants = sorted((Variant(tuple(calls)) for calls in sides.values()), key=lambda one: -len(one.calls))
    if len(variants) != 2:
        return None
    entered = [min(group.tracks[c.rank].timeline.wall(c.entered_ns) for c in one.calls) for one in variants]
    return CallDivergence(group, first, tuple(variants), OPERATION, max(entered))


def where_order_parts(parted: CallDivergence) -> CallDivergence:
    """The divergence at the first of the calls before it that had other shapes of equal size, where the same calls follow in
    another order: the sizes that disagree are not where it began."""
    tracks = [parted.group.tracks[variant.call.rank] for variant in parted.variants]
    if len(tracks) != 2:
        return parted
    for number, (one, other) in reversed(list(_before(parted, FURTHEST))):
        if symbol(one) == symbol(other) or one.site != other.site:
            continue
        a, b = (
            [symbol(call) for call in issued_from(track.timeline, call.seq)]
            for track, call in zip(tracks, (one, other), strict=True)
        )
        first = _at(parted, number) if is_reordered(a, b) else None
        return parted if first is None else replace(first, differs=parted.differs)
    return parted


def _strays(group: GroupCalls, mine: Call, other: Call) -> bool:
    """Whether a rank always issued what the other side did at this point, and this time something else."""
    if symbol(mine) == symbol(other):
        return came_another_way(group, mine, other)
    expected = ExecutedStatements.of(group.tracks[mine.rank].timeline, mine.seq).expected()
    return expected is not None and expected == symbol(other) != symbol(mine)


def not_joined(parted: CallDivergence, sources: Mapping[str, str]) -> tuple[CallDivergence, Variant, Variant] | None:
    """(where, who issued, who answered): the first call of the user's own that met one of `with model.join()`.

    join() stands in for the reductions of its model; any other collective inside the block is answered by one of those.
    """
    calls = [variant.call for variant in parted.variants]
    if len(calls) != 2 or not any(is_join(sources, call.site) for call in calls):
        return None
    found: tuple[int, int] | None = None  # (number, variant that issued)
    for number, pair in chain([(parted.number, calls)], _before(parted, FURTHEST_JOINED)):
        for mine in (0, 1):
            line = statement_at(sources, pair[mine].site)
            if is_join(sources, pair[1 - mine].site) and f"{pair[mine].op.word}(" in line:
                found = number, mine
        if not any(is_join(sources, call.site) for call in pair):
            break
    if found is None:
        return None
    moved = parted if found[0] == parted.number else _at(parted, found[0])
    return None if moved is None else (moved, moved.variants[found[1]], moved.variants[1 - found[1]])


def is_join(sources: Mapping[str, str], site: SourceLine) -> bool:
    """Whether the line is that of a `with model.join():` or `with Join([...]):`."""
    lines = sources.get(site.path, "").splitlines()
    return 0 < site.line <= len(lines) and bool(_JOIN.match(lines[site.line - 1]))


def _before(parted: CallDivergence, furthest: int) -> Iterator[tuple[int, list[Call]]]:
    """The numbers before, backwards, each with the call of one rank per variant, as far as these remember."""
    tracks = [parted.group.tracks[variant.call.rank] for variant in parted.variants]
    for number in range(parted.number - 1, max(0, parted.number - 1 - furthest), -1):
        calls = [call for track in tracks if (call := track.call(number)) is not None]
        if len(calls) < len(tracks):
            return
        yield number, calls


def _at(parted: CallDivergence, number: int) -> CallDivergence | None:
    """The same variants at another number; None when one of the ranks has forgotten it."""
    tracks = parted.group.tracks
    variants = []
    for variant in parted.variants:
        calls = tuple(call for rank in variant.ranks if (call := tracks[rank].call(number)) is not None)
        if len(calls) < len(variant.calls):
            return None
        variants.append(Variant(calls))
    entered = [min(tracks[c.rank].timeline.wall(c.entered_ns) for c in variant.calls) for variant in variants]
    return replace(parted, number=number, variants=tuple(variants), differs=OPERATION, at_ns=sorted(entered)[1])
