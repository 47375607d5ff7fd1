"""How much of a job a recording shows: which ranks were seen whole, and which were not. Part of every verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from distdoctor.recording.rank_set import named

if TYPE_CHECKING:
    from distdoctor.recording.recording import Recording

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Coverage:
    """Of `expected` ranks (0: nobody knows how many there were) each is in one of the sets.

    `whole`: recorded from start to end, as far as we know. `silenced`: its recorder gave up before the rank ended. `torn`: its
    trace is cut off or damaged. `unreadable`: it left a trace that cannot be opened or is none. `unread`: its trace lies there,
    and another host was to read it. `elsewhere`: no launcher that was read of has started it, nor is its
    process on a host that was looked at. `missing`: it left nothing.
    `hosts`: the ranks that were seen, by the name of their host. `damaged`: other files of the recording that cannot be read.
    `idle`: ranks are there, and none did a step or a collective. `end_unseen`: the job is over, and nobody noted how it ended.
    `running`: it was alive when it was read. `unsealed`: ranks that were seen, and of whose traces nobody can tell whether they
    are what the rank wrote.
    """

    expected: int = 0
    whole: Ranks = ()
    silenced: Ranks = ()
    torn: Ranks = ()
    unreadable: Ranks = ()
    unread: Ranks = ()
    elsewhere: Ranks = ()
    missing: Ranks = ()
    hosts: Mapping[str, Ranks] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    idle: bool = False
    end_unseen: bool = False
    running: bool = False
    unsealed: Ranks = ()

    @classmethod
    def of(cls, recording: Recording) -> Coverage:
        """What `recording` shows of its job, by traces, dumps or stacks."""
        stacks = recording.stacks.ranks if recording.stacks is not None else {}
        seen = {*recording.ranks, *(rank for rank, look in stacks.items() if look.process is not None)}
        if not seen and recording.clues:
            return cls()  # a plain log: it says nothing about who is in it
        if not seen and recording.ras is not None:  # who answered is told by what is found
            answered = tuple(range(recording.world_size))
            return cls(recording.world_size, answered)
        faults = {trouble.rank: trouble.fault for trouble in recording.troubles if trouble.fault and trouble.rank >= 0}
        silenced = {trouble.rank for trouble in recording.troubles if trouble.silenced and trouble.rank in seen}
        torn = {rank for rank, fault in faults.items() if fault == "torn"} - seen
        unreadable = faults.keys() - torn - seen
        expected = max(recording.world_size, max(seen | torn | unreadable, default=-1) + 1)
        ended = recording.job.ends if stacks else {}
        seen |= {clue.rank for clue in recording.clues if clue.rank >= 0} if stacks and not recording.ranks else set()
        if recording.ras is not None and recording.stacks is not None and recording.stacks.copies:
            seen |= recording.ras.answered
        unread = recording.unread - (seen | torn | unreadable)
        gone = seen | torn | unreadable | unread | ended.keys()
        absent = [rank for rank in range(expected) if rank not in gone]
        on_others = set(recording.stacks.elsewhere) if recording.stacks is not None else set()
        started = (set(recording.job.started) or {*absent}) - on_others
        return cls(
            expected,
            _sorted(seen - silenced),
            _sorted(silenced),
            _sorted(torn),
            _sorted(unreadable),
            _sorted(unread),
            tuple(rank for rank in absent if rank not in started),
            tuple(rank for rank in absent if rank in started),
            _by_host(recording),
            tuple(trouble.what for trouble in recording.troubles if trouble.fault and trouble.rank < 0),
            bool(recording.ranks)
            and not (stacks or recording.backend)
            and not any(len(log.calls) or len(log.steps) for log in recording.ranks.values()),
            recording.job.end_unseen,
            recording.job.running,
            tuple(rank for rank, log in recording.ranks.items() if log.unsealed),
        )

    @cached_property
    def seen(self) -> Ranks:
        """Ranks of which there is a record, whole or not."""
        return _sorted({*self.whole, *self.silenced})

    @cached_property
    def unseen(self) -> Ranks:
        """Ranks of which nothing could be read."""
        return _sorted({*self.torn, *self.unreadable, *self.unread, *self.elsewhere, *self.missing})

    @property
    def all_ranks(self) -> bool:
        """Every rank that the job had was seen whole: nobody's silence can hide a cause."""
        return not (self.unseen or self.silenced)

    @property
    def complete(self) -> bool:
        """What the recording shows is the whole job: where no check finds anything, it is healthy."""
        return (
            self.all_ranks and bool(self.whole) and not (self.idle or self.end_unseen or self.damaged or self.unsealed)
        )

    @property
    def allows_certainty(self) -> bool:
        """Whether a record can be proof: no damage to any trace would have gone unseen."""
        return not self.unsealed

    @property
    def is_empty(self) -> bool:
        """The recording is readable and holds nothing that a check could look at."""
        return not (self.torn or self.unreadable or self.damaged or self.silenced) and (self.idle or not self.seen)

    @cached_property
    def gaps(self) -> tuple[str, ...]:
        """What is missing, one clause each: `rank 1 left no recording`."""
        clauses = (
            (self.missing, "left no recording"),
            (self.unread, "left a trace that was not read here"),
            (self.elsewhere, "ran elsewhere, and nothing came from there"),
            (self.torn, "left a damaged trace"),
            (self.unreadable, "left a trace that cannot be read"),
            (self.silenced, "stopped recording before the end"),
            (self.unsealed, "left a trace of which no launcher noted a checksum"),
        )
        found = [f"{named(ranks)} {what}" for ranks, what in clauses if ranks]
        if self.idle:
            found.append("no rank recorded a step or a collective")
        if self.end_unseen:
            found.append("nobody saw how the job ended")
        found += self.damaged
        return tuple(found)

    @property
    def sentence(self) -> str:
        """`1 of 2 ranks seen: rank 1 left no recording`; "" where nothing is missing."""
        if not self.gaps:
            return ""
        gaps = "; ".join(self.gaps)
        if self.all_ranks:
            return gaps
        not_here = self.missing or self.unread or self.elsewhere
        where = f" on {', '.join(sorted(self.hosts))}" if len(self.hosts) == 1 and not_here and self.seen else ""
        return f"{len(self.seen)} of {self.expected} ranks seen{where}: {gaps}"


def _by_host(recording: Recording) -> dict[str, Ranks]:
    hosts: dict[str, list[int]] = {}
    for rank, log in sorted(recording.ranks.items()):
        if log.host:
            hosts.setdefault(log.host, []).append(rank)
    return {host: tuple(ranks) for host, ranks in hosts.items()}


def _sorted(ranks: Iterable[int]) -> Ranks:
    return tuple(sorted(ranks))
