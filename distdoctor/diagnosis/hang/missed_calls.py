"""The calls that can never be completed because a rank has left that they need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property

from distdoctor.diagnosis.facts.collectives import GroupCalls, Track
from distdoctor.diagnosis.hang.ending import LEFT
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import FROM_ALL, CallFlag


class MissedCalls:
    """What other ranks called, or wait to receive, and a rank that has left can no longer answer."""

    def __init__(self, known: HangFacts) -> None:
        self._known = known

    def first_missed_by(self, rank: int) -> tuple[int, Call, GroupCalls | None] | None:
        """The first call of another rank that can never be completed because this rank has left: (when, the call, its group)."""
        found: list[tuple[int, Call, GroupCalls | None]] = []
        for group, beyond in self._calls_beyond.get(rank, ()):
            if (first := beyond.first_after(group.tracks[rank].count)) is not None:
                found.append((*first, group))
        for received in self._received_from.get(rank, ()):
            if rank in self._known.pairs.awaits(received) and self._is_needed(received):
                found.append((self._known.timeline(received.rank).wall(received.entered_ns), received, None))
        return min(found, key=lambda item: (item[2] is None, item[0], item[1].rank), default=None)

    def _is_needed(self, call: Call) -> bool:
        """Whether a rank could not go on without a call that was never answered: it is inside, or failed because of it.

        It could where it caught the exception and was not ended by it, and where it left in order itself: then a thread was
        inside (a heartbeat), or nobody waited for the handle.
        """
        ending = self._known.endings.get(call.rank)
        if ending is not None and ending.how == LEFT:
            return False
        has_failed = ending is not None and (ending.victim or ending.is_failure)
        return has_failed or not call.flags & CallFlag.FAILED

    @cached_property
    def _calls_beyond(self) -> dict[int, list[tuple[GroupCalls, _CallsBeyond]]]:
        """Of each rank, its groups."""
        found: dict[int, list[tuple[GroupCalls, _CallsBeyond]]] = defaultdict(list)
        for group in self._known.facts.groups:
            beyond = _CallsBeyond(group, self._is_needed)
            for rank in group.tracks:
                found[rank].append((group, beyond))
        return dict(found)

    @cached_property
    def _received_from(self) -> dict[int, list[Call]]:
        """Of each sender, the last receive of each lane."""
        found: dict[int, list[Call]] = defaultdict(list)
        for lane, received in self._known.pairs.receives.items():
            if received:
                found[lane[1]].append(received[-1])
        return dict(found)


class _CallsBeyond:
    """What the members of a group issued beyond a number of calls. Of thousands of ranks most have issued equally many."""

    def __init__(self, group: GroupCalls, is_needed: Callable[[Call], bool]) -> None:
        self._tracks, self._is_needed = list(group.tracks.values()), is_needed
        self._most = max((track.count for track in self._tracks), default=0)
        self._known: dict[int, tuple[int, Call] | None] = {}

    def first_after(self, count: int) -> tuple[int, Call] | None:
        """The first call of number `count` + 1 that its rank needed, and when it was issued; None where there is none."""
        if count >= self._most:
            return None
        if count not in self._known:
            calls = ((t, t.call(count + 1)) for t in self._tracks if t.count > count and self._needs_more(t, count))
            needed = ((t, call) for t, call in calls if call is not None)
            timed = ((t.timeline.wall(call.entered_ns), call) for t, call in needed)
            self._known[count] = min(timed, key=lambda one: (one[0], one[1].rank), default=None)
        return self._known[count]

    def _needs_more(self, track: Track, count: int) -> bool:
        """Whether a rank needed one of its calls beyond a number. One that needs all and came back had them all."""
        for number in range(count + 1, track.count + 1):
            call = track.call(number)
            if call is None or not _has_come_back(call):
                return call is not None and self._is_needed(call)
            if call.op in FROM_ALL:
                return False
        return False


def _has_come_back(call: Call) -> bool:
    """Whether a blocking call is known to have returned without an exception."""
    blocks = not call.flags & (CallFlag.ASYNC | CallFlag.NATIVE | CallFlag.FAILED)
    return bool(call.returned_ns) and blocks
