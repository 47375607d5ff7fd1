"""A condition on the rank that decides who comes to what some ranks are in, told from their stacks.

It stands around the line itself, or around one of the calls that led there since the stacks of the two sides part.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.hang.live.rank_activity import RankActivity, telling_thread
from distdoctor.diagnosis.source.rank_guard import Guard, guards_at, guards_of_one
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.recording import SourceLine

_BUILTINS = frozenset({"", *vars(builtins)})


@dataclass(frozen=True)
class StackGuard:
    """The condition, and the line of the stack that it stands around: that of the call itself, or of a call that led to it."""

    guard: Guard
    site: SourceLine


def guard_between(
    sources: Mapping[str, str], side: Sequence[RankActivity], other: Sequence[RankActivity]
) -> StackGuard | None:
    """The innermost condition on the rank that lets all of one side through and is not around what the other side is in."""
    ranks, others = [one.rank for one in side], [one.rank for one in other]
    leads_to = side[0].call
    for site, counterpart in _parting(side[0], other[0]):
        for guard in guards_of_one(sources, site, counterpart):
            lets_in = guard.on_rank and all(guard.lets_through(rank) is not False for rank in ranks)
            if lets_in and not _is_answered(sources, site, leads_to, guard, ranks, others):
                return StackGuard(guard, site)
        leads_to = site.function
    return None


def _parting(one: RankActivity, other: RankActivity) -> Iterator[tuple[SourceLine, SourceLine]]:
    """The user's lines of one stack below the last that both have, the innermost first, each with the other's line there."""
    mine, theirs = _lines(one), _lines(other)
    shared = next(
        (at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
    )
    counterpart = theirs[shared] if shared < len(theirs) else other.site
    for site in reversed(mine[shared:] or [one.site]):
        yield site, counterpart


def _lines(standing: RankActivity) -> list[SourceLine]:
    """The user's lines of the stack that tells, the outermost first."""
    thread = telling_thread(standing.process) if standing.process is not None else None
    return [frame.site for frame in reversed(thread.frames) if frame.is_users] if thread is not None else []


def _is_answered(
    sources: Mapping[str, str],
    site: SourceLine,
    leads_to: str,
    guard: Guard,
    ranks: Sequence[int],
    others: Sequence[int],
) -> bool:
    """Whether the function calls the same once more where the ranks of the other side come by: in the other branch of the
    condition, or under one that lets in just them. Each rank has a call of its own then, as where the leader goes first.

    `leads_to`: the function that is entered from the line. Under another name there, it may be any that the line calls.
    """
    file = source_file(sources, site.path)
    if file is None:
        return False
    calls = [node for node in ast.walk(file.function_at(site.line)) if isinstance(node, ast.Call)]
    here = {last_word(call.func) for call in calls if call.lineno <= site.line <= (call.end_lineno or call.lineno)}
    same = {leads_to} if leads_to in here else here - _BUILTINS
    for call in calls:
        if call.lineno == site.line or last_word(call.func) not in same:
            continue
        for one in guards_at(sources, SourceLine(site.path, call.lineno)):
            if (one.line == guard.line and one.negated is not guard.negated) or (
                one.on_rank and _parts(one, others, ranks)
            ):
                return True
    return False


def _parts(guard: Guard, inside: Sequence[int], outside: Sequence[int]) -> bool:
    return all(guard.lets_through(rank) for rank in inside) and not any(
        guard.lets_through(rank) is not False for rank in outside
    )
