"""The collectives of a job, group by group: who has issued how many, and what each of them was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.recording.recording import Call, RankTrace, Recording
from distdoctor.recording.trace.events import NewGroupDone
from distdoctor.recording.trace.layout import extend, ranks_of
from distdoctor.recording.trace.reader import Rows


@dataclass(frozen=True)
class Track:
    """What one rank has issued on one group. `first` is the number of the oldest call that the ring still holds.

    `count` calls were issued (0: none yet); `prefix` is the running digest of their signatures, `site_prefix` that of their
    lines.
    """

    timeline: Timeline
    key: int  # text id of the group's name
    since_ns: int  # when this incarnation of the group was made, and when the next one was
    until_ns: int
    first: int = 1
    count: int = 0
    prefix: int = 0
    site_prefix: int = 0
    whole: bool = False  # every row of the rank's calls belongs to this track

    @property
    def rank(self) -> int:
        return self.timeline.rank

    @property
    def rows(self) -> Rows:
        """The kept calls, by rising number."""
        calls = self.timeline.log.calls
        return calls if self.whole else calls[self._places]

    @cached_property
    def _places(self) -> NDArray[np.uint32]:
        """Of the kept calls among the rank's."""
        mine = _of_group(self.timeline, self.key, self.since_ns, self.until_ns)
        return np.flatnonzero(mine).astype(np.uint32)

    def row(self, number: int) -> Rows | None:
        """The call of that number, None when it was not issued, is forgotten, or was torn."""
        calls, places = self.timeline.log.calls, None if self.whole else self._places
        kept, at = len(calls) if places is None else len(places), number - self.first
        if not (0 <= at < kept and calls[at if places is None else places[at]]["number"] == number):
            numbers = calls["number"] if places is None else calls["number"][places]
            at = int(np.searchsorted(numbers, number))
            if at >= kept or numbers[at] != number:
                return None
        row: Rows = calls[at if places is None else places[at]]
        return row

    def call(self, number: int) -> Call | None:
        row = self.row(number)
        return None if row is None else self.timeline.log.call(row)

    def is_whole(self, number: int) -> bool:
        """Whether the digest of that call continues the one before it. A record that was read while it was written does not."""
        row, before = self.row(number), self.row(number - 1) if number > 1 else None
        if row is None or (number > 1 and before is None):
            return row is not None
        return extend(int(before["prefix"]) if before is not None else 0, int(row["signature"])) == int(row["prefix"])

    def prefix_at(self, number: int) -> int | None:
        """The digest of the signatures 1..number, None when that is forgotten."""
        if number == self.count:
            return self.prefix
        row = self.row(number) if number else None
        return 0 if number == 0 else None if row is None else int(row["prefix"])


@dataclass(frozen=True)
class GroupCalls:
    """One process group over all its members. Ranks that left no recording are in `members` and not in `tracks`."""

    name: str
    members: tuple[int, ...]
    backend: str
    incarnation: int
    tracks: dict[int, Track] = field(default_factory=dict)
    renumbered: bool = False  # of a world that was made again with fewer ranks, which have other numbers there

    @property
    def unseen(self) -> tuple[int, ...]:
        """Members whose recording is missing."""
        return tuple(rank for rank in self.members if rank not in self.tracks)

    @property
    def counts(self) -> dict[int, int]:
        return {rank: track.count for rank, track in self.tracks.items()}

    @property
    def words(self) -> str:
        """`the default group`, `group tp (ranks 0-3)`."""
        from distdoctor.recording.rank_set import named

        return (
            "the default group"
            if self.name in ("0", "default_pg", "")
            else f"group {self.name} ({named(self.members)})"
        )


@dataclass(frozen=True)
class Collectives:
    """The fact that checks on collectives ask for."""

    streams: ClassVar[frozenset[str]] = frozenset({"collectives"})
    recording: Recording
    timelines: dict[int, Timeline]
    groups: tuple[GroupCalls, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        timelines = {rank: Timeline(log) for rank, log in recording.ranks.items()}
        return cls(recording, timelines, tuple(_groups(timelines)))

    @cached_property
    def by_name(self) -> dict[tuple[str, int], tuple[GroupCalls, ...]]:
        """The groups of a name that a rank belongs to: (name, rank) -> incarnations in order."""
        found: dict[tuple[str, int], tuple[GroupCalls, ...]] = {}
        for group in self.groups:
            for rank in group.tracks:
                found[group.name, rank] = (*found.get((group.name, rank), ()), group)
        return found

    @cached_property
    def one_host(self) -> bool:
        """Whether all recorded ranks ran on one machine, so that their clocks are one clock."""
        return len({timeline.log.machine for timeline in self.timelines.values()}) <= 1

    def now_ns(self, timeline: Timeline) -> int:
        """When the recording was read, on the monotonic clock of this rank's host; 0 when it was not read live.

        The rank's own clock on one host; the wall clock, as good as the hosts keep it, on several.
        """
        job = self.recording.job
        if not job.running or not job.read_at_ns:
            return 0
        if self.one_host:
            return job.read_at_ns
        return job.read_wall_ns - timeline.log.monotonic_to_wall_ns if job.read_wall_ns else 0

    @cached_property
    def last_wall_ns(self) -> int:
        """The latest sign of life of any rank, on the wall clock."""
        return max((timeline.wall(timeline.last_ns) for timeline in self.timelines.values()), default=0)

    @cached_property
    def _any_renumbered(self) -> bool:
        return any(group.renumbered for group in self.groups)

    def is_renumbered(self, call: Call) -> bool:
        """Whether the peers of a call cannot be told."""
        group = self.group_of(call) if self._any_renumbered else None
        return group is not None and group.renumbered

    def group_of(self, call: Call) -> GroupCalls | None:
        """The group on which a call was issued, in the incarnation of that moment, and of several of that name the one that the
        rank has made."""
        groups = [
            group
            for group in reversed(self.by_name.get((call.group, call.rank), ()))
            if group.tracks[call.rank].since_ns <= call.entered_ns
        ]
        return next((group for group in groups if group.tracks[call.rank].key >= 0), groups[0] if groups else None)


def _groups(timelines: dict[int, Timeline]) -> Iterable[GroupCalls]:
    """Every group, put together from what its members say. A rank that has not made it yet has a track of no calls."""
    found: dict[tuple[str, int, int], GroupCalls] = {}
    unresolved: list[tuple[str, int, Track]] = []
    forgotten: set[tuple[int, str, int]] = set()

    def forgot(rank: int, group: GroupCalls) -> bool:
        """Whether a rank may have made a group, and its ring holds no record of it any more."""
        rows = timelines[rank].log.lost.get("groups", 0)
        return bool(rows) or (rank, group.name, group.incarnation) in forgotten

    repeated = {name for timeline in timelines.values() for name in _made_again(timeline.log)}
    for rank, timeline in timelines.items():
        seen: dict[str, int] = {}
        log = timeline.log
        for row in log.groups:
            name, members = log.text(int(row["key"])), members_of(log.text(int(row["members"])))
            incarnation = seen[name] = seen.get(name, -1) + 1
            uncounted = bool(log.lost.get("groups", 0)) and name in repeated  # which life it is, nobody knows any more
            track = None if uncounted else _track(timeline, int(row["key"]), name, incarnation)
            if track is None:
                forgotten.add((rank, name, incarnation))
                continue
            if rank not in members.known:
                unresolved.append((name, incarnation, track))
                continue
            key = (
                name,
                id(members),
                incarnation,
            )  # equal texts give the same object; hashing 10,000 ranks 10,000 times does not
            if key not in found:
                found[key] = GroupCalls(name, members.ranks, log.text(int(row["backend"])), incarnation)
            found[key].tracks[rank] = track
    renumbered: dict[tuple[str, int], list[Track]] = {}
    for name, incarnation, track in unresolved:  # members are written down at the first call only (split_group)
        mine = [g for g in found.values() if (g.name, g.incarnation) == (name, incarnation) and track.rank in g.members]
        for group in mine:
            group.tracks.setdefault(track.rank, track)
        if not mine and incarnation:
            renumbered.setdefault((name, incarnation), []).append(track)
    for group in found.values():
        if (group.name, group.incarnation) in renumbered:
            yield from _one_by_one(group, group.tracks.values())
            continue
        for rank in group.members:
            if rank in timelines and rank not in group.tracks and not forgot(rank, group):
                group.tracks[rank] = Track(timelines[rank], -1, 0, 0)
        yield group
    for (name, incarnation), tracks in renumbered.items():
        yield from _one_by_one(GroupCalls(name, (), "", incarnation), tracks)


def _made_again(log: RankTrace) -> list[str]:
    """The names of groups that a rank has made more than once."""
    keys, counts = np.unique(log.groups["key"], return_counts=True)
    return [log.text(int(key)) for key in keys[counts > 1]]


def _one_by_one(group: GroupCalls, tracks: Iterable[Track]) -> Iterator[GroupCalls]:
    """A group whose members have other numbers than the launcher gave them: who met whom is not on record."""
    for track in tracks:
        yield replace(group, tracks={track.rank: track}, renumbered=True)


@dataclass(frozen=True)
class Members:
    """The ranks of a group in its own order, and as a set."""

    ranks: tuple[int, ...]
    known: frozenset[int]


@lru_cache(maxsize=65536)
def members_of(text: str) -> Members:
    """`0,1,2` or `0-2,8` as ranks."""
    ranks = ranks_of(text)
    return Members(ranks, frozenset(ranks))


def _track(timeline: Timeline, key: int, name: str, incarnation: int) -> Track | None:
    log = timeline.log
    life = _life(log, key, name, incarnation)
    if life is None:
        return None
    since, until = life
    calls = log.calls
    at = np.flatnonzero(_of_group(timeline, key, since, until))
    whole = len(at) == len(calls)
    if not len(at):
        return Track(timeline, key, since, until)
    first, last = calls[at[0]], calls[at[-1]]
    return Track(
        timeline,
        key,
        since,
        until,
        int(first["number"]),
        int(last["number"]),
        int(last["prefix"]),
        int(last["site_prefix"]),
        whole,
    )


def _life(log: RankTrace, key: int, name: str, incarnation: int) -> tuple[int, int] | None:
    """From when to when (0: still) the name stood for this incarnation of the group; None where that is forgotten.

    What is forgotten of the times is the oldest: they belong to the last incarnations.
    """
    kept = int((log.groups["key"] == key).sum())
    if kept == 1:
        return 0, 0
    made = [one.at_ns for one in log.noted(NewGroupDone) if one.key == name][-kept:]
    at = incarnation - (kept - len(made))
    if at < 0:
        return None
    is_first = not incarnation and not log.lost.get("groups", 0)
    return 0 if is_first else made[at], made[at + 1] if at + 1 < len(made) else 0


def _of_group(timeline: Timeline, key: int, since: int, until: int) -> NDArray[np.bool_]:
    """Which calls are collectives of the group."""
    calls = timeline.log.calls
    mine: NDArray[np.bool_] = calls["group"] == key
    if timeline.pairwise is not None:
        mine &= ~timeline.pairwise
    if since:
        mine &= calls["entered_ns"] >= since
    if until:
        mine &= calls["entered_ns"] < until
    return mine
