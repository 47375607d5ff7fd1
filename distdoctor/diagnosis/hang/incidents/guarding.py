"""The condition in the source behind a call that some ranks made and others did not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from distdoctor.diagnosis.hang.call_chains import Parted
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, LEAVES, Guard, guards_of_one
from distdoctor.recording.recording import Call, SourceLine


def find_guard(
    sources: Mapping[str, str],
    odd: Call,
    usual: Call,
    ranks: tuple[int, ...],
    others: tuple[int, ...],
    parted: Parted | None = None,
) -> tuple[Guard, Call] | None:
    """The condition that let the odd ranks reach their call, or kept them from the others' call; with that call.

    A condition on the rank is preferred; it must agree with who got through, as far as it can be worked out. `parted`: where the
    calls that led there part, if that is not in the lines of the two themselves.
    """
    one, other = (parted.one, parted.other) if parted is not None else (odd.site, usual.site)
    candidates = [
        *((guard, odd) for guard in guards_of_one(sources, one, other) if _separates(guard, ranks, others)),
        *((guard, usual) for guard in guards_of_one(sources, other, one) if _separates(guard, others, ranks)),
    ]
    if not any(guard.on_rank for guard, _ in candidates):
        candidates = [(guard, call) for guard, call in candidates if call is odd and guard.how == ENCLOSES][:1]
    candidates.sort(key=lambda found: (not found[0].on_rank, found[0].how == LEAVES))
    return candidates[0] if candidates else None


def put_under(incident: Incident, guard: Guard, call: Call, path: str = "") -> Incident:
    """The incident with the condition that decides about one of its calls; `path`: its file, if not that of the call."""
    return replace(
        incident,
        guard=guard,
        guarded=call,
        guard_at=SourceLine(path or call.site.path, guard.line, guard.function or "<module>"),
    )


def _separates(guard: Guard, through: Iterable[int], kept_out: Iterable[int]) -> bool:
    """Whether a condition can have let the first ranks through and kept the second ones out."""
    if any(guard.lets_through(rank) is False for rank in through):
        return False
    return not any(guard.lets_through(rank) is True for rank in kept_out) or not guard.on_rank
