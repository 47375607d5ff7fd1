"""The fact: what each rank saved and loaded, when, and what stood between a save and a load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.states import StateSnapshot
from distdoctor.recording.trace.events import Kind, Loading, Renamed, SavedBeside, Saving
from distdoctor.recording.trace.layout import POINT_TO_POINT
from distdoctor.recording.trace.state_file import SAVE

FAILED, NOT_YET = -1, 0


@dataclass(frozen=True)
class Saved:
    """One save of one rank. `done_ns`: `FAILED`, `NOT_YET`, or when it was over, like `event.at_ns` on the wall clock.

    `names`: the path that it was given and those that it got afterwards. `final_ns`: when it had the last of them. `beside`: the
    names of its tensors that are not the trained ones themselves; None where they are not known.
    """

    rank: int
    event: Saving
    done_ns: int
    names: frozenset[str]
    final_ns: int
    beside: tuple[str, ...] | None = None


@dataclass(frozen=True)
class CheckpointLoad:
    """One load of one rank."""

    rank: int
    event: Loading
    done_ns: int


@dataclass(frozen=True)
class Checkpoints:
    """Every save and load that is still on record. `in_memory`: what was trained, saved where no path is known, as into bytes
    that somebody else writes."""

    streams: ClassVar[frozenset[str]] = frozenset({"checkpoints", "progress", "collectives"})
    logs: Mapping[int, RankTrace]
    saves: tuple[Saved, ...]
    loads: tuple[CheckpointLoad, ...]
    in_memory: tuple[Saved, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        saves = [one for rank, log in recording.ranks.items() for one in _saves(rank, log)]
        loads = [one for rank, log in recording.ranks.items() for one in _loads(rank, log)]
        return cls(recording.ranks, tuple(saves), tuple(loads), tuple(_in_memory(recording.states)))

    def events(self, kind: type[Kind]) -> Iterator[tuple[int, Kind]]:
        """(rank, event) of one kind in the order of their times, which are on the wall clock."""
        for rank, log in self.logs.items():
            found = [replace(one, at_ns=one.at_ns + log.monotonic_to_wall_ns) for one in log.noted(kind)]
            yield from ((rank, one) for one in sorted(found, key=lambda one: one.at_ns))

    def calls_before(self, rank: int, at_ns: int) -> dict[str, int] | None:
        """How many collectives of each group a rank had entered; None where that is not on record any more."""
        log = self.logs[rank]
        earlier = log.calls["entered_ns"] <= at_ns - log.monotonic_to_wall_ns
        if len(log.calls) and int(log.calls["seq"][0]) > 1 and not earlier.any():
            return None
        rows = log.calls[earlier & ~np.isin(log.calls["op"], [int(op) for op in POINT_TO_POINT])]
        counts: dict[str, int] = {}
        for group, number in zip(rows["group"], rows["number"], strict=True):
            counts[log.text(int(group))] = int(number)
        return counts

    def unordered(self, save: Saved, load: CheckpointLoad) -> bool:
        """Whether no collective of both ranks stands between the end of the save and the beginning of the load."""
        one, other = self.calls_before(save.rank, save.final_ns), self.calls_before(load.rank, load.event.at_ns)
        if one is None or other is None:
            return False
        shared = {group.name for group in self.logs[save.rank].group_list() if load.rank in group.ranks}
        return bool(shared) and all(one.get(name, 0) == other.get(name, 0) for name in shared)

    def same_machine(self, ranks: list[int]) -> bool:
        return len({self.logs[rank].machine for rank in ranks}) == 1


def _wall(log: RankTrace, done_ns: int) -> int:
    return done_ns + log.monotonic_to_wall_ns if done_ns > 0 else done_ns


def _saves(rank: int, log: RankTrace) -> Iterator[Saved]:
    renames = sorted(log.noted(Renamed), key=lambda one: one.at_ns)
    saves = sorted(log.noted(Saving), key=lambda one: one.at_ns)
    described = sorted(log.noted(SavedBeside), key=lambda one: one.at_ns)
    for number, event in enumerate(saves):
        again = next((one.at_ns for one in saves[number + 1 :] if one.path == event.path), None)
        names, final_ns = {event.path}, event.done_ns
        for rename in renames:
            if rename.at_ns >= event.at_ns and (again is None or rename.at_ns < again) and rename.path in names:
                names.add(rename.to)
                final_ns = max(final_ns, rename.at_ns)
        mine = (
            None if one.many else one.names for one in described if one.path == event.path and one.at_ns >= event.at_ns
        )
        wall = replace(event, at_ns=event.at_ns + log.monotonic_to_wall_ns)
        yield Saved(rank, wall, _wall(log, event.done_ns), frozenset(names), _wall(log, final_ns), next(mine, None))


def _in_memory(states: Iterable[StateSnapshot]) -> Iterator[Saved]:
    for one in states:
        if one.document.when == SAVE and not one.document.paths:
            at_ns = one.document.wall_ns
            yield Saved(one.rank, Saving(step=one.document.step, at_ns=at_ns, site=one.site), at_ns, frozenset(), at_ns)


def _loads(rank: int, log: RankTrace) -> Iterator[CheckpointLoad]:
    for event in sorted(log.noted(Loading), key=lambda one: one.at_ns):
        wall = replace(event, at_ns=event.at_ns + log.monotonic_to_wall_ns)
        yield CheckpointLoad(rank, wall, _wall(log, event.done_ns))
