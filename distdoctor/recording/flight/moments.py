"""Whether dumps show one moment. Of a job that stands still they do; of one that moves, each shows a moment of its own.

torch writes no time into a dump. But a collective that every member attends cannot complete on one rank before another has
issued it: a dump that does not know of such a call is older than the one in which it is complete, and its rank has gone on since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distdoctor.recording.flight.backend_state import BackendState, GroupState

LEFTOVER_NS = (
    60_000_000_000  # hosts write their dumps of one stall within seconds of each other, whatever their clocks say
)
FEWEST_MOMENTS = 3  # different last completed calls: devices that fail do so together, or one or two of them alone


@dataclass(frozen=True)
class Outrun:
    """The dump of a rank ends at `issued` of a group, and `by` have completed call `number`, which needs that rank."""

    rank: int
    group: GroupState
    issued: int
    number: int
    by: tuple[int, ...]

    @property
    def words(self) -> str:
        who = f"rank {self.by[0]}" + (f" and {len(self.by) - 1} more" if len(self.by) > 1 else "")
        done = f"{who} {'has' if len(self.by) == 1 else 'have'} completed #{self.number}"
        return f"the dump of rank {self.rank} ends at #{max(self.issued, 0)} of {self.group.words}, and {done}"


def outrun_dumps(states: Mapping[int, BackendState]) -> dict[int, Outrun]:
    """Rank -> what shows that its dump is older than another one; the first group that does."""
    found: dict[int, Outrun] = {}
    for members in _by_group(states).values():
        attended, done = sorted(_attended(members)), dict[int, tuple[int, ...]]()
        for rank, state in members.items():
            at = bisect_right(attended, state.enqueued)
            if rank not in found and state.is_counted and at < len(attended):
                number = attended[at]
                if number not in done:
                    done[number] = tuple(sorted(r for r, one in members.items() if one.completed >= number))
                found[rank] = Outrun(rank, state, state.enqueued, number, done[number])
    return found


def leftover_dumps(states: Mapping[int, BackendState]) -> dict[int, str]:
    """Rank -> why, in words, of the dumps of an earlier stall or start: they are much older than all others, and either outrun by
    them or of a job of another size."""
    found = _of_another_size(states)
    rest = {rank: state for rank, state in states.items() if rank not in found}
    outrun = {rank: one.words for rank, one in outrun_dumps(rest).items()}
    return found | _much_older(states, outrun, [rank for rank in rest if rank not in outrun])


def _of_another_size(states: Mapping[int, BackendState]) -> dict[int, str]:
    """Those whose largest group has another size than that of the latest dump, and their words for it."""
    worlds = {rank: max(map(len, own), default=0) for rank, own in _own_groups(states).items()}
    newest = worlds[max(states, key=lambda rank: (states[rank].last_ns, rank))] if states else 0
    others = {
        rank: f"it counts {world} ranks, and later ones {newest}"
        for rank, world in worlds.items()
        if world and newest and world != newest
    }
    return _much_older(states, others, [rank for rank, world in worlds.items() if world == newest])


def _much_older(states: Mapping[int, BackendState], suspects: Mapping[int, str], than: Iterable[int]) -> dict[int, str]:
    since = min((states[rank].last_ns for rank in than if states[rank].last_ns), default=0) - LEFTOVER_NS
    return {rank: words for rank, words in suspects.items() if 0 < states[rank].last_ns < since}


def _own_groups(states: Mapping[int, BackendState]) -> dict[int, list[tuple[int, ...]]]:
    return {rank: [group.own_members for group in state.groups] for rank, state in states.items()}


def spread_group(states: Mapping[int, BackendState]) -> dict[int, GroupState]:
    """Rank -> state of the first group of which most members have not completed what others have, each ending somewhere else;
    {} where there is none."""
    for members in _by_group(states).values():
        ends = [state.completed for state in members.values()]
        furthest = max(ends)
        behind = sum(end < furthest for end in ends)
        if 2 * behind > len(ends) and len(set(ends)) >= FEWEST_MOMENTS and _attended(members):
            return members
    return {}


def _by_group(states: Mapping[int, BackendState]) -> dict[str, dict[int, GroupState]]:
    """Group name -> rank -> its state. Groups with sends and receives are left out: torch counts these too, for each member its
    own."""
    found: dict[str, dict[int, GroupState]] = {}
    for rank, state in states.items():
        for group in state.groups:
            found.setdefault(group.name, {})[rank] = group
    return {name: members for name, members in found.items() if not any(one.pairwise for one in members.values())}


def _attended(members: Mapping[int, GroupState]) -> set[int]:
    """Numbers of calls that some member has completed and that no member can be missing from, as far as the dumps say what the
    calls were: those that are pending on others, and the last that each has seen complete."""
    furthest = max(state.completed for state in members.values())
    pending = {
        one.number for state in members.values() for one in state.pending if not one.is_pairwise and not one.is_rooted
    }
    return {number for number in pending | {one.attended for one in members.values()} if 0 < number <= furthest}
