"""Whether a running job stands still, and because of whom: from the stacks of its ranks alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import ip_address
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE, Confidence, Place
from distdoctor.diagnosis.hang.in_logs import KEY as LOG_KEY
from distdoctor.diagnosis.hang.in_ras import RasRanks
from distdoctor.diagnosis.hang.live.grades import waiting_without_stacks
from distdoctor.diagnosis.hang.live.rank_activity import (
    KEEPS_GIL,
    Activity,
    Grade,
    RankActivity,
    is_held_by_kernel,
    standing_of,
    waits_for_child,
)
from distdoctor.diagnosis.hang.silence import SECOND, WITHOUT_RHYTHM_NS
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.stacks import UNTOLD, Link, ProcessStacks, Stacks
from distdoctor.recording.trace.events import LongPhase

MOST_WITHOUT_MESH = 3  # ranks that have no groups of their own in two directions
LONG_SECONDS = (
    25.0  # of waiting for a rank that computes; a slow evaluation or save is over by then more often than not
)
IN_A_NAMED_PHASE = WITHOUT_RHYTHM_NS / SECOND  # seconds
# Bytes that a process may read and write between two samples while it stands still: pipes and sockets that only keep alive.
QUIET_BYTES = 64 * 1024
OWN_CODE = (Activity.USER, Activity.CHECKPOINT)
FIRST_FREE_PORT = 1024  # gloo and NCCL take ports that the kernel gives out; those below belong to services (RFC 6335)


@dataclass(frozen=True)
class Stall:
    """The fact that checks on stacks ask for."""

    streams: ClassVar[frozenset[str]] = frozenset()
    recording: Recording
    stacks: Stacks
    standings: dict[int, RankActivity]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """NotApplicable: nobody has looked at the processes."""
        if not recording.stacks:
            raise NotApplicable("no stacks were taken (distdoctor hang-dump takes them from a running job)")
        stacks = recording.stacks
        found = {rank: standing_of(seen, recording.sources) for rank, seen in stacks.ranks.items()}
        if stacks.copies:
            found = dict(sorted((waiting_without_stacks(recording) | found).items()))
            stacks = replace(stacks, elsewhere=tuple(rank for rank in stacks.elsewhere if rank not in found))
        return cls(recording, stacks, found)

    @cached_property
    def waiting(self) -> tuple[RankActivity, ...]:
        """The ranks that only other ranks can let go on."""
        return tuple(s for s in self.standings.values() if s.waits_for_ranks)

    @cached_property
    def waited_seconds(self) -> float | None:
        """How long the most patient rank has been waiting for others; None when the kernel does not tell, 0 when nobody waits."""
        times = [s.still_seconds for s in self.waiting if s.doing is not Activity.INIT or s.still_seconds]
        known = [time for time in times if time is not None]
        return max(known) if known else (None if times else 0.0)

    @cached_property
    def others(self) -> tuple[RankActivity, ...]:
        """The ranks that others may wait for: they are in no communication."""
        return tuple(s for s in self.standings.values() if not s.waits_for_ranks)

    @cached_property
    def cut(self) -> tuple[tuple[int, Link], ...]:
        """(rank, connection) of every dead connection between ranks, when somebody has waited for long."""
        if not self.waiting or not self.exceeds_patience(self.waited_seconds):
            return ()
        return tuple(
            (rank, link)
            for rank, process in self.stacks.processes()
            for link in process.links
            if link.peer >= 0 or (self.stacks.elsewhere and _may_be_a_rank(link))
        )

    def of_kind(self, *kinds: Activity) -> Iterable[RankActivity]:
        return (standing for standing in self.standings.values() if standing.doing in kinds)

    def is_moving(self, standing: RankActivity) -> bool:
        """Whether a rank is at work: its stack changes, it computes outside the GIL, it reads and writes, or it waits for a child
        process of its own that does."""
        process = standing.process
        if process is None or process.is_stopped:
            return False
        if process.gil_thread is not None:
            return False
        computes = standing.is_busy and not standing.keeps_gil
        return (
            process.moved or computes or process.bytes_moved > QUIET_BYTES or self.working_child(standing) is not None
        )

    def working_child(self, standing: RankActivity) -> ProcessStacks | None:
        """The child process at work that a rank waits for: an evaluation, a compiler, a pool."""
        if standing.doing not in OWN_CODE or not waits_for_child(standing):
            return None
        working = (one for one in standing.seen.children if one.is_busy or one.bytes_moved > QUIET_BYTES)
        return next(working, None)

    def is_alone_at_work(self, standing: RankActivity) -> bool:
        """Whether a rank stays in one function while the others have long been waiting: stuck or slow, nobody sees which."""
        long = not self._is_in_named_phase(standing.rank) or (self.waited_seconds or 0.0) >= IN_A_NAMED_PHASE
        return long and standing.process is not None and self.keeps_others_waiting(standing.process)

    def keeps_others_waiting(self, process: ProcessStacks) -> bool:
        """The same of one process, a rank's own or a worker of its loader. Whoever reads or writes much is only slow."""
        if process.lasting is None or (self.waited_seconds or 0.0) < LONG_SECONDS:
            return False
        return process.is_busy or process.bytes_moved <= QUIET_BYTES

    def is_stuck(self, standing: RankActivity) -> bool:
        """Whether a rank that waits for nobody has stood still for longer than patience allows: a minute in a phase that the
        program names."""
        if standing.process is None or self.is_moving(standing):
            return False
        times: tuple[float | None, ...] = (standing.still_seconds, self.waited_seconds)
        if self._is_in_named_phase(standing.rank):
            times = tuple(time for time in times if time is None or time >= IN_A_NAMED_PHASE)
        return any(map(self.exceeds_patience, times))

    def _is_in_named_phase(self, rank: int) -> bool:
        log = self.recording.ranks.get(rank)
        return log is not None and any(one.named and not one.ended_ns for one in log.noted(LongPhase))

    def exceeds_patience(self, seconds: float | None) -> bool:
        """None is what a kernel says that does not tell when a thread last ran: then the samples alone decide. So it is with
        copies, of which nobody knows when they were taken, unless training went on after them."""
        if self.stacks.later:
            return False
        return seconds is None or seconds >= self.stacks.patience_seconds

    @property
    def is_one_moment(self) -> bool:
        """Whether all that is there is one copied stack of each rank: it does not show whether anybody stands still."""
        return self.stacks.copies == 1

    @cached_property
    def explains(self) -> tuple[str, ...]:
        """What a finding by copied stacks explains of the log or the answers of RAS that lie beside them."""
        beside = (self.recording.clues or self.recording.ras) and not self.recording.ranks
        return (LOG_KEY,) if self.stacks.copies and beside else ()

    @cached_property
    def is_backed(self) -> bool:
        """Whether more than copied stacks shows that ranks wait."""
        return any(one.grade is not Grade.STACK for one in self.waiting)

    @cached_property
    def looks(self) -> str:
        """`in the one copied stack`, `in all samples over 0.5 s`: what a stack was the same in."""
        if self.is_one_moment:
            gave_up = [one.rank for one in self.waiting if one.grade is Grade.LOG]
            if gave_up:
                return f"its stack was seen once; the log says that {named(gave_up)} waited until the timeout"
            if self._ras is not None and self._ras.stands:
                return "its stack was seen once; NCCL's RAS shows that no rank moved"
            return "seen once: the copies show one moment, and not for how long"
        if self.stacks.copies:
            return f"its stack was the same in all {self.stacks.copies} copies, as it is where each step is slow there"
        return f"its stack was the same in all samples over {self.stacks.observed_seconds:.1f} s"

    @cached_property
    def _ras(self) -> RasRanks | None:
        """What NCCL's RAS says, where it alone shows that some ranks wait."""
        ras = self.recording.ras
        return RasRanks(ras) if ras is not None and any(one.grade is Grade.RAS for one in self.waiting) else None

    def confidence(self, *standings: RankActivity) -> Confidence:
        """How sure a verdict on a rank that stands still is: nobody sees from outside whether it would have gone on."""
        if self.stacks.copies:
            return LIKELY if self._wait_for(standings) else POSSIBLE
        seconds = [s.still_seconds for s in (*standings, *self.waiting)]
        return POSSIBLE if all(one is None for one in seconds) else LIKELY

    def _wait_for(self, standings: Sequence[RankActivity]) -> bool:
        """Whether copies show that all other ranks wait in a call for these, which are in none and not at work. That they are not
        py-spy tells, and whoever has faulthandler dump all ranks after a time."""
        if self.is_one_moment and len(standings) > 1 and len(self.standings) > MOST_WITHOUT_MESH:
            return False  # those who wait may do so in groups of their own
        if self._ras is not None and not self._ras.stands:
            return False  # one answer is a moment of a job that may be moving
        told = bool(self.explains) or all(one.process is None or one.process.state != UNTOLD for one in standings)
        return told and self.awaited_by_all(standings) and not (self.stacks.elsewhere or self.stacks.unranked)

    def awaited_by_all(self, standings: Sequence[RankActivity]) -> bool:
        """Whether all other ranks wait in a call."""
        ranks = {standing.rank for standing in standings}
        others = [one for one in self.standings.values() if one.rank not in ranks]
        return bool(others) and all(one.waits_for_ranks for one in others)

    def how_long(self, standing: RankActivity) -> str:
        """` for 43 s`, "" when that is unknown."""
        known = [s for s in (standing.still_seconds, self.waited_seconds) if s]
        return f" for {max(known):.0f} s" if known and max(known) >= 1 else ""

    def since(self, standing: RankActivity) -> str:
        """`has been at `lock.acquire()` for 43 s`; `is at `lock.acquire()`` where nobody knows since when."""
        how_long = self.how_long(standing)
        if not how_long:
            return standing.words
        words = _PERFECT.sub(_perfect, standing.words, count=1)
        does = words.removesuffix(KEEPS_GIL)
        return f"{does}{how_long}{words[len(does) :]}"

    def places(self, *first: RankActivity) -> tuple[Place, ...]:
        """Where every rank is, `first` ones first, ranks at the same line with the same words together."""
        rows: dict[tuple[SourceLine, str], list[int]] = {}
        rest = [standing for standing in self.standings.values() if standing not in first]
        for standing in (*first, *rest):
            rows.setdefault((standing.site, standing.words), []).append(standing.rank)
        return tuple(Place(site, tuple(ranks), words) for (site, words), ranks in rows.items())

    @cached_property
    def in_own_code(self) -> tuple[RankActivity, ...]:
        """Every rank, when all of them have long stood still in code that is no communication; () otherwise.

        Then no rank waits for another, and no timeout of torch's will ever end the job.
        """
        standings = tuple(self.standings.values())
        if self.is_one_moment:
            return ()
        alone = len(standings) < 2 or self.stacks.elsewhere or not self.exceeds_patience(self.quiet_seconds)
        return () if alone or not all(self._stands_in_own_code(s) for s in standings) else standings

    def _stands_in_own_code(self, standing: RankActivity) -> bool:
        helpers = (*standing.seen.children, *standing.seen.workers)
        at_work = any(child.moved or child.bytes_moved > QUIET_BYTES for child in helpers)
        return standing.doing in OWN_CODE and not at_work and not self.is_moving(standing)

    @cached_property
    def quiet_seconds(self) -> float | None:
        """For how long no rank has done anything, as the traces tell, else the kernel. A rank that polls runs now and then."""
        facts = derived(Collectives, self.recording)
        quiet = [now - t.last_ns for t in facts.timelines.values() if (now := facts.now_ns(t))]
        if quiet:
            return min(quiet) / 1e9
        still = [s.still_seconds for s in self.standings.values()]
        return None if None in still else min((one for one in still if one is not None), default=None)

    @property
    def who_waits(self) -> str:
        """`ranks 0,2-3 wait in all_reduce`; "" when nobody does."""
        if not self.waiting:
            return ""
        ranks = [standing.rank for standing in self.waiting]
        calls = sorted({standing.words.removeprefix("waits ") for standing in self.waiting})
        if len(calls) == 1 and calls[0] == self.waiting[0].words:  # of a log, which tells of what is over
            return f"{named(ranks)} {calls[0]}"
        return f"{named(ranks)} {'waits' if len(ranks) == 1 else 'wait'} {calls[0] if len(calls) == 1 else 'for it'}"

    @property
    def explained(self) -> frozenset[int]:
        """Ranks whose standstill has a cause outside their own code: stopped, held by the kernel, gone."""
        return frozenset(
            s.rank
            for s in self.standings.values()
            if s.doing in (Activity.STOPPED, Activity.GONE, Activity.UNREADABLE)
            or (s.process is not None and is_held_by_kernel(s.process))
        )


def _may_be_a_rank(link: Link) -> bool:
    """Whether the other end can be a rank of another host, rather than a service: storage, a dashboard, a name server."""
    host, _, port = link.address.rpartition(":")
    return not ip_address(host.strip("[]")).is_global and int(port) >= FIRST_FREE_PORT


_PERFECT = re.compile(r"^(is|waits)\b")


def _perfect(verb: re.Match[str]) -> str:
    return {"is": "has been", "waits": "has waited"}[verb[1]]


def of_several(words: str) -> str:
    """`have been at `f.read()` for 43 s`: what was said of one rank, of several."""
    return _OF_ONE.sub(lambda verb: {"has": "have", "is": "are", "waits": "wait"}[verb[1]], words, count=1)


_OF_ONE = re.compile(r"^(has|is|waits)\b")

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "held by the kernel",
    "T": "stopped",
    "t": "held by a debugger",
    "Z": "dead",
    "X": "dead",
    "I": "idle",
}  # letters of /proc/PID/stat, proc_pid_stat(5)


def state_of(process: ProcessStacks) -> str:
    """`sleeping`: what the kernel says of a process, in words; of a copied stack what py-spy said."""
    if process.copied:
        return {"R": "running", "S": "idle"}.get(process.state, "seen")
    return STATES.get(process.state, f"in state {process.state}")


def evidence_of(process: ProcessStacks | None) -> dict[str, object]:
    """The numbers about one process."""
    if process is None:
        return {}
    if process.copied:
        return {"pid": process.pid, "py-spy says": state_of(process)} if process.pid else {}
    found: dict[str, object] = {"pid": process.pid, "state": process.state, "cpu": f"{process.cpu_share:.0%} of a core"}
    if process.still_seconds is not None:
        found["last ran"] = f"{process.still_seconds:.1f} s ago"
    if process.wchan:
        found["kernel function"] = process.wchan
    if process.held_gil:
        found["holds the GIL"] = True
    return found


__all__ = ["CERTAIN", "LIKELY", "POSSIBLE", "Stall", "evidence_of", "state_of"]
