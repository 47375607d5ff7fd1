"""A condition on the rank that decides who comes to what some ranks are in, told from their stacks.

It stands around the line itself, or around one of the calls that led there since the stacks of the two sides part.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.hang.live.rank_activity import RankActivity, telling_thread
from distdoctor.diagnosis.source.rank_guard import Guard, guards_at, guards_of_one
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.recording import SourceLine


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
    for site, counterpart in _parting(side[0], other[0]):
        for guard in guards_of_one(sources, site, counterpart):
            lets_in = guard.on_rank and all(guard.lets_through(rank) is not False for rank in ranks)
            if lets_in and not _is_answered(sources, side[0], ranks, others):
                return StackGuard(guard, site)
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
    sources: Mapping[str, str], standing: RankActivity, ranks: Sequence[int], others: Sequence[int]
) -> bool:
    """Whether the function calls the same operation once more, under a condition that lets in just the ranks of the other side:
    each rank has a call of its own then, as where the leader goes first."""
    file = source_file(sources, standing.site.path)
    if file is None:
        return False
    for call in ast.walk(file.function_at(standing.site.line)):
        if not isinstance(call, ast.Call) or last_word(call.func) != standing.call or call.lineno == standing.site.line:
            continue
        around = guards_at(sources, SourceLine(standing.site.path, call.lineno))
        if any(_parts(guard, others, ranks) for guard in around if guard.on_rank):
            return True
    return False


def _parts(guard: Guard, inside: Sequence[int], outside: Sequence[int]) -> bool:
    return all(guard.lets_through(rank) for rank in inside) and not any(
        guard.lets_through(rank) is not False for rank in outside
    )
