"""On which side of a call that does not complete the trouble is: the program's, or the device's and the network's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distdoctor.recording.flight.backend_state import BackendState, GroupState
from distdoctor.recording.rank_set import named

_TORCH = "torch's flight recorder"


def told_by_backend(states: Mapping[int, BackendState], ranks: Sequence[int], group: str) -> str:
    """What the flight recorders of these ranks say about a group, "" when fewer than two of them have it.

    The last number enqueued counts the program, the oldest number that is not complete the device and the links.
    """
    found = {rank: one for rank in ranks if (one := _group(states.get(rank), group)) is not None}
    if len(found) < 2:
        return ""
    behind = _behind({rank: one.enqueued for rank, one in found.items()})
    if behind:
        number, most = found[behind[0]].enqueued, max(one.enqueued for one in found.values())
        return (
            f"{_TORCH}: {named(behind)} enqueued only up to #{number}, the others up to #{most}: the program is behind"
        )
    oldest = {rank: _oldest(one) for rank, one in found.items()}
    behind = _behind(oldest)
    if behind:
        return (
            f"{_TORCH}: {named(behind)} {'has' if len(behind) == 1 else 'have'} not completed #{oldest[behind[0]]}, "
            "but the others have: look at its device and its links"
        )
    first = next(iter(found.values()))
    if first.pending:
        stuck = first.pending[0]
        return f"{_TORCH} agrees: all ranks enqueued {stuck.operation} #{stuck.number}, none completed it"
    return ""


def _group(state: BackendState | None, name: str) -> GroupState | None:
    groups = state.groups if state is not None else ()
    return next((one for one in groups if one.name == name), None)


def _oldest(group: GroupState) -> int:
    return group.pending[0].number if group.pending else group.enqueued + 1


def _behind(numbers: Mapping[int, int]) -> list[int]:
    """The ranks with the smallest number, when the others agree on a greater one."""
    least = min(numbers.values())
    late = [rank for rank, number in numbers.items() if number == least]
    return late if len(set(numbers.values())) == 2 and len(late) < len(numbers) else []
