"""What a plain log gives away about a job that stood still or died: the lowest grade of evidence, quoted line by line.

NCCL's watchdog prints, per rank, what timed out and how far the rank had come: the same two numbers that dumps hold, so the same
engine (`device_progress`) looks at them. Which illness it is, is for the checks to say: each claims what it knows best.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, Confidence, Finding, Place, Prescription
from distdoctor.diagnosis.hang.device_progress import Absence, DeviceProgress, StoppedDevice, StuckCall
from distdoctor.diagnosis.hang.ending import lacks_a_peer
from distdoctor.diagnosis.hang.fingerprints import fingerprints
from distdoctor.diagnosis.hang.in_ras import RasRanks
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.fault_dumps import SIGNALS
from distdoctor.recording.flight.backend_state import UNKNOWN, BackendState, GroupState, Pending
from distdoctor.recording.job_log import ENDED_BY_TIMEOUT, LAUNCHER, OF_ALL, TORCHS_KINDS, is_of_the_programs_own
from distdoctor.recording.rank_set import named
from distdoctor.recording.ras_report import RasReport
from distdoctor.recording.recording import RankEnd, Recording, SourceLine

_SPEAKS_OF_NOTHING = frozenset(
    {ClueKind.WARNING, ClueKind.TRAINING, ClueKind.LAST_WORDS, ClueKind.BUSY, ClueKind.LOOPBACK}
)
_COMMUNICATES = re.compile(r"/torch/(?:distributed|autograd|_tensor|nn/parallel)")
MOST_OTHERS = 4  # errors of other ranks that are told beside the first one
KEY = "job log"  # of the one fact that checks explain: what went wrong, of which a log tells the rest as well
_FOLLOWS = frozenset(
    {
        "ChildFailedError",
        "ProcessRaisedException",
        "ProcessExitedException",
        "SignalException",
        "KeyboardInterrupt",
        "ActorDiedError",
        "RayActorError",
        "WorkerCrashedError",
    }
)
# NCCL's words
SHARED_MEMORY = re.compile(
    r"(?:creating shared memory segment|failed to extend) (?:/dev/shm/|nccl)|posix_fallocate failed ?: No space left"
)
# An exception that only hands on how another process ended.
_CARRIES_ON = re.compile(r"\b(?:exit(?:ed with)?|return) (?:code|status) -?\d|non-zero exit status", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?: (?:bytes|[KMGT]iB))?")
_NOWHERE = re.compile(r"^\S*Rendezvous\w*Error")  # of a launcher
# Operations whose members may bring different sizes, or of which one entry stands for many.
_ANY_SIZE = frozenset(
    {"ALLTOALL", "ALLTOALL_BASE", "COALESCED", "SEND", "RECV", "GATHER", "SCATTER", "ALLGATHER", "REDUCE_SCATTER"}
)
_OF_TORCH = re.compile(
    r"torch|cuda|nccl|gloo|distributed|rendezvous|ChildFailed|\btrain|\bray\.|deepspeed|megatron|lightning|accelerate",
    re.IGNORECASE,
)
_OF_TRAINING = re.compile(r"\b(?:epochs?|steps?|train|training|iter\w*)\b", re.IGNORECASE)  # in a progress bar's words
GOES_ON_LINES = 200  # without an error among them; the stack of a process that aborts is shorter
BY_TORCH = 92  # specificity of what torch has compared itself
_NAMED_GROUP = re.compile(r"(PG (?:ID )?\d{1,9}[^(]{0,100})\((\w{1,100})\)")
_HIDDEN = re.compile(r"\[repeated \d{1,9}x across cluster\]")
LOOK = "run it under distdoctor run, or set TORCH_FR_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT and examine the dumps"


@dataclass(frozen=True)
class Disagreement:
    """Ranks that timed out at one number of one group, by what their watchdogs print of the call."""

    group: str
    number: int
    values: Mapping[str, list[Clue]]
    confidence: Confidence
    said: str = "each rank's watchdog prints what it timed out in"

    @cached_property
    def _sides(self) -> list[tuple[str, list[Clue]]]:
        """The majority first."""
        return sorted(self.values.items(), key=lambda side: (-len(side[1]), side[1][0].rank))

    @property
    def is_tie(self) -> bool:
        return len(self._sides[0][1]) == len(self._sides[1][1])

    @property
    def odd(self) -> list[Clue]:
        """The lines of the smaller side; of two equal ones neither is the odd one, and these are the lines of both."""
        return [clue for _, side in (self._sides if self.is_tie else self._sides[1:]) for clue in side]

    @property
    def where(self) -> str:
        return f"#{self.number}{_of_group(self.group)}"

    @property
    def table(self) -> str:
        return "; ".join(f"{named(clue.rank for clue in side)}: {value}" for value, side in self._sides)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where each side made its call, as far as their tracebacks show it."""
        sites = {(clue.site, value): [one.rank for one in side if one.site == clue.site]
                 for value, side in self._sides for clue in side if clue.site}  # fmt: skip
        return tuple(Place(site, tuple(ranks), value) for (site, value), ranks in sites.items())

    def finding(self, what: str, word: str, remedy: str, specificity: int) -> Finding:
        """The finding with the check's own words: `what` they disagree on, and the `word` for the odd ones."""
        title = f"the ranks disagree on {what}" if self.is_tie else word
        return replace(self._finding(title, remedy, specificity), places=self.places)

    def _finding(self, title: str, remedy: str, specificity: int) -> Finding:
        return from_line(
            self.odd[0],
            f"{title} at {self.where}: {self.table}",
            sorted(clue.rank for clue in self.odd),
            self.confidence,
            self.said,
            Prescription(remedy, change=f"make the ranks agree at {self.where}; {LOOK}"),
            specificity,
        )


@dataclass(frozen=True)
class OutOfStep:
    """A rank whose last call is one that the others have completed: `short` of some calls, its numbers lag behind."""

    rank: int
    clue: Clue
    furthest: int  # number of the call that others timed out in
    completed_by: tuple[int, ...]

    @property
    def short(self) -> int:
        return self.furthest - self.clue.numbers[0]


@dataclass(frozen=True)
class LogFacts:
    """The fact that a plain log, or an answer of NCCL's RAS, is all there is: what its lines show."""

    streams: ClassVar[frozenset[str]] = frozenset()
    recording: Recording

    @classmethod
    def of(cls, recording: Recording) -> Self:
        taken = recording.stacks and not recording.stacks.copies  # copies lie beside a log, and either may tell more
        if recording.ranks or taken or recording.backend:
            raise NotApplicable("there is something better than a job log")
        if not (recording.clues or recording.ras or recording.job.launcher == LAUNCHER):
            raise NotApplicable("there is no job log, nor an answer of NCCL's RAS")
        return cls(recording)

    @cached_property
    def lost_at(self) -> dict[str, int]:
        """Log -> the line in which the first connection was gone."""
        found: dict[str, int] = {}
        for clue in self.lines(ClueKind.PEER_GONE):
            found.setdefault(clue.file, clue.line_number)
        return found

    @cached_property
    def warnings(self) -> list[Clue]:
        """What NCCL warned of. What it warns of once a connection is gone follows from that."""
        every = self.lines(ClueKind.WARNING)
        return [clue for clue in every if clue.line_number < self.lost_at.get(clue.file, 1 << 62)]

    @cached_property
    def ras(self) -> RasRanks:
        """What NCCL's RAS answers, of no communicator where it was not asked."""
        return RasRanks(self.recording.ras or RasReport(()))

    def lines(self, kind: ClueKind) -> list[Clue]:
        return [clue for clue in self.recording.clues if clue.kind is kind]

    @cached_property
    def timeouts(self) -> dict[tuple[str, int], Clue]:
        """(group, rank) -> the first timeout that its watchdog printed. Numbers of groups without a name are left out as
        soon as one rank prints two: they count the calls of different groups."""
        found: dict[tuple[str, int], Clue] = {}
        for clue in self.lines(ClueKind.TIMED_OUT):
            if clue.rank >= 0 and clue.numbers[0] >= 0 and not (self.of_several_groups and not clue.group):
                found.setdefault((clue.group, clue.rank), clue)
        return found

    @cached_property
    def of_several_groups(self) -> list[Clue]:
        """One timeout of each rank, where a rank timed out at several numbers and the log does not say of which groups."""
        numbers: dict[int, set[int]] = defaultdict(set)
        first: dict[int, Clue] = {}
        for clue in self.lines(ClueKind.TIMED_OUT):
            if clue.rank >= 0 and not clue.group:
                numbers[clue.rank].add(clue.numbers[0])
                first.setdefault(clue.rank, clue)
        several = any(len(own) > 1 for own in numbers.values())
        return [first[rank] for rank in sorted(first)] if several else []

    @cached_property
    def unnumbered(self) -> list[Clue]:
        """One timeout of each rank, with its line of the source where that is told, where no watchdog prints the number of the
        call (torch before 1.13, backend nccl2)."""
        first: dict[int, Clue] = {}
        for clue in self.lines(ClueKind.TIMED_OUT):
            known = first.setdefault(clue.rank, clue)
            first[clue.rank] = replace(known, site=known.site or clue.site, group=known.group or clue.group)
        return [] if self.timeouts or self.of_several_groups else [first[rank] for rank in sorted(first)]

    @cached_property
    def busy(self) -> Clue | None:
        """The progress bar that somebody still drew when others gave up waiting in a barrier: it is of no training. Where nothing
        says whose it is, it is rank 0's, most likely, so that one must not have waited itself."""
        waited = list(self.timeouts.values()) or self.unnumbered
        barrier = all(
            c.operation == "BARRIER" or (c.numbers[2] in (1, -1) and c.operation == "ALLREDUCE") for c in waited
        )
        bars = [clue for clue in self.lines(ClueKind.BUSY) if not _OF_TRAINING.search(clue.operation)]
        alone = not bars or max(bars[0].rank, 0) not in {clue.rank for clue in waited}
        return bars[0] if bars and waited and barrier and alone else None

    @cached_property
    def _struck(self) -> dict[tuple[str, int], Clue]:
        """(group, rank) -> where its watchdog says that it struck, whether or not the timeout itself is in the log."""
        struck = [clue for clue in self.lines(ClueKind.WORK) if clue.rank >= 0 and clue.numbers[0] >= 0]
        return {(clue.group, clue.rank): clue for clue in reversed(struck)}

    @cached_property
    def progress(self) -> DeviceProgress:
        """How far each rank had come, as its watchdog says."""
        groups: dict[int, dict[str, GroupState]] = defaultdict(dict)
        work: dict[tuple[str, int], Clue] = {}
        for clue in self.lines(ClueKind.WORK):
            if clue.rank >= 0:
                work.setdefault((clue.group, clue.rank), clue)
        for group, rank in sorted({*self.timeouts, *work}):
            timeout, counts = self.timeouts.get((group, rank)), work.get((group, rank))
            enqueued, completed = (counts.numbers[1], counts.numbers[2]) if counts else (UNKNOWN, UNKNOWN)
            pending: tuple[Pending, ...] = ()
            if timeout is not None:
                number = timeout.numbers[0]
                enqueued, completed = max(enqueued, number), number - 1
                pending = (
                    Pending(timeout.operation.lower().strip("_"), number, "timed out", order=timeout.line_number),
                )
            groups[rank][group] = GroupState(group, "", enqueued, UNKNOWN, completed, pending)
        states = {rank: BackendState(rank, tuple(found.values())) for rank, found in groups.items()}
        return DeviceProgress(states, tuple(range(self.recording.world_size)))

    def timeout(self, call: StuckCall) -> Clue:
        """The line in which the rank's watchdog prints this call."""
        return self.timeouts[call.group.name, call.rank]

    # --- what the watchdogs say ----------------------------------------------------------------------------------------------

    def _at_one_number(self) -> Iterator[tuple[str, int, list[Clue]]]:
        """(group, number, lines) of all that timed out there."""
        numbers: dict[tuple[str, int], list[Clue]] = defaultdict(list)
        for (group, _), clue in sorted(self.timeouts.items()):
            numbers[group, clue.numbers[0]].append(clue)
        yield from ((group, number, clues) for (group, number), clues in numbers.items())

    @cached_property
    def other_operations(self) -> Disagreement | None:
        """The first call in which ranks timed out in different operations."""
        for group, number, clues in self._at_one_number():
            values: dict[str, list[Clue]] = defaultdict(list)
            for clue in clues:
                if clue.operation:
                    values[clue.operation].append(clue)
            if len(values) > 1:
                return Disagreement(group, number, values, of_one_group(group))
        return None

    @cached_property
    def other_sizes(self) -> Disagreement | None:
        """The first call in which ranks timed out in one operation with different sizes, where it needs equal ones."""
        for group, number, clues in self._at_one_number():
            values: dict[str, list[Clue]] = defaultdict(list)
            for clue in clues:
                if clue.numbers[2] >= 0:
                    values[_elements(clue)].append(clue)
            operations = {clue.operation for side in values.values() for clue in side}
            if len(values) > 1 and len(operations) == 1 and not operations & _ANY_SIZE:
                return Disagreement(group, number, values, of_one_group(group))
        return None

    def checked_by_torch(self, what: str) -> Disagreement | None:
        """What ranks disagree on ("operation", "shape" or "dtype") where torch compares their calls before it issues them."""
        found = fingerprints(self.lines(ClueKind.EXCEPTION))
        if len({own.number for own in found}) != 1 or (
            what != "operation" and len({own.operation for own in found}) != 1
        ):
            return None
        values: dict[str, list[Clue]] = defaultdict(list)
        for own in found:
            values[f"{what} {getattr(own, what) or 'of no tensor'}"].append(own.clue)
        said = "each rank prints its own call (TORCH_DISTRIBUTED_DEBUG=DETAIL)"
        return Disagreement("", found[0].number, values, LIKELY, said) if len(values) > 1 else None

    @cached_property
    def out_of_step(self) -> list[OutOfStep]:
        return [self._behind(one) for one in self.progress.stopped.values() if not one.ahead]

    def _behind(self, one: StoppedDevice) -> OutOfStep:
        own = self.timeout(one.call)
        others = (c for (group, rank), c in self.timeouts.items() if group == own.group and rank in one.completed_by)
        furthest = max((c.numbers[0] for c in others), default=one.call.pending.number + 1)
        return OutOfStep(one.call.rank, own, furthest, one.completed_by)

    @cached_property
    def stopped_devices(self) -> list[StoppedDevice]:
        """Ranks that have not completed what others have, while their hosts ran on."""
        return [one for one in self.progress.stopped.values() if one.ahead]

    @cached_property
    def absences(self) -> list[tuple[Absence, Clue]]:
        """Ranks that have completed all that they enqueued, less than the others wait for; the line of one that waits."""
        return [(one, self.timeouts[one.call.group.name, one.waiting[0]]) for one in self.progress.absences]

    @cached_property
    def not_joined(self) -> list[Clue]:
        """Whom torch's own desync report blames, when it says that they did not join."""
        return [clue for clue in self.lines(ClueKind.LAGGING) if "didn't join" in clue.words]

    @cached_property
    def silent(self) -> tuple[int, ...]:
        """Ranks that print elsewhere and whose watchdog did not time out, while those of all others did in one call, or in one
        group where they number no calls."""
        calls = {(group, clue.numbers[0], clue.operation) for (group, _), clue in self.timeouts.items()}
        calls = calls or {(clue.group, -1, clue.operation) for clue in self.unnumbered}
        seen = {rank for _, rank in (*self.timeouts, *self._struck)} | {clue.rank for clue in self.unnumbered}
        silent = tuple(rank for rank in range(self.recording.world_size) if rank not in seen)
        if self.hides_lines or -1 in seen:
            return ()
        everybodys = all("default_pg" in group or group in OF_ALL for group, _, _ in calls)
        return silent if everybodys and len(calls) == 1 and len(silent) < len(seen) else ()

    @cached_property
    def silent_beside_gloo(self) -> dict[int, Clue]:
        """Rank -> a line of one that waited, of ranks that print no error at all, while gloo gave up waiting on others and nobody
        raised anything else. Who waits with them gives up in the same moment, or loses its peer."""
        waited = [clue for clue in self.lines(ClueKind.WAITED) if clue.rank >= 0]
        failed = {clue.rank for clue in self.recording.clues if clue.kind not in _SPEAKS_OF_NOTHING}
        silent = [rank for rank in range(self.recording.world_size) if rank not in failed]
        bad = self.own_error is not None or any(
            end.signal and not end.ended_by_launcher for end in self.recording.job.ends.values()
        )
        known = -1 not in {clue.rank for clue in self.lines(ClueKind.WAITED)} and not self.hides_lines
        return dict.fromkeys(silent, waited[0]) if waited and known and not bad and len(silent) <= len(waited) else {}

    def last_words(self, rank: int) -> Clue | None:
        """The last line that a rank has printed, where it has a prefix of its own."""
        return next((clue for clue in self.lines(ClueKind.LAST_WORDS) if clue.rank == rank), None)

    @cached_property
    def named_ranks(self) -> int:
        """How many ranks printed anything that tells something, or ended."""
        return len({clue.rank for clue in self.recording.clues if clue.rank >= 0} | self.recording.job.ends.keys())

    @cached_property
    def hides_lines(self) -> bool:
        """Whether Ray has printed lines that resemble each other once: then who printed nothing may have printed it as well."""
        return any(_HIDDEN.search(clue.words) for clue in self.recording.clues)

    @cached_property
    def together(self) -> list[Clue]:
        """The timeouts of the first group that printed any."""
        first = min(self.timeouts, default=("", -1))[0]
        found = {rank: clue for (group, rank), clue in self.timeouts.items() if group == first}
        numbers = {clue.numbers[0] for clue in found.values()}
        for (group, rank), clue in self._struck.items():
            if group == first and clue.numbers[0] in numbers:
                found.setdefault(rank, clue)
        # The first is the one that says in what.
        return sorted(
            found.values(), key=lambda clue: (clue.kind is not ClueKind.TIMED_OUT, not clue.operation, clue.rank)
        )

    # --- everything else -------------------------------------------------------------------------------------------------------

    @cached_property
    def own_error(self) -> Clue | None:
        """The first exception of the program itself; where none says more than that a process ended, what a device printed."""
        telling = (clue for clue in self._own_errors if not _CARRIES_ON.search(clue.words))
        return next(chain(telling, self.lines(ClueKind.PRINTED), self._own_errors), None)

    @cached_property
    def _own_errors(self) -> list[Clue]:
        """Those that follow from no other: a lost connection that the program opened itself is its own, and what a collective
        raises behind its own timeout is none."""
        given_up: dict[int, int] = {}
        for clue in self.recording.clues:
            struck = clue.kind is ClueKind.TIMED_OUT or (clue.kind is ClueKind.WORK and clue.numbers[0] >= 0)
            if struck and clue.rank >= 0:  # without a number it may be another rank's
                given_up.setdefault(clue.rank, clue.line_number)
        return [
            clue
            for clue in self.lines(ClueKind.EXCEPTION)
            if _kind(clue) not in _FOLLOWS
            and not _NOWHERE.search(clue.words)
            and not (
                clue.line_number > given_up.get(clue.rank, 1 << 62)
                and _kind(clue) in TORCHS_KINDS
                and (not clue.raised_in or _COMMUNICATES.search(clue.raised_in))
            )
            and (
                is_of_the_programs_own(_kind(clue), clue.raised_in)
                or not lacks_a_peer(clue.words)
                or SHARED_MEMORY.search(clue.words)
            )
        ]

    @cached_property
    def other_errors(self) -> list[Clue]:
        """Errors of ranks that the first one is not of, each once, of another kind or line: raised outside of communication, so
        nothing shows that they follow from the first."""
        own, found = self.own_error, dict[tuple[str, SourceLine], Clue]()
        known = self.same_error(own) if own is not None and own.rank >= 0 else ()
        for clue in self._own_errors if known else ():
            apart = clue.rank >= 0 and clue.rank not in known
            if apart and clue.site and clue.raised_in and not _COMMUNICATES.search(clue.raised_in):
                found.setdefault((_kind(clue), clue.site), clue)
        return [clue for clue in found.values() if not self.goes_on_after(clue)][:MOST_OTHERS]

    @cached_property
    def _same_errors(self) -> Mapping[tuple[str, SourceLine | str], list[Clue]]:
        """Those of one kind at one line, or in the same words."""
        found = defaultdict[tuple[str, SourceLine | str], list[Clue]](list)
        for one in self._own_errors:
            found[_kind(one), _NUMBER.sub("#", one.words)].append(one)
            if one.site:
                found[_kind(one), one.site].append(one)
        return found

    def same_error(self, error: Clue) -> tuple[int, ...]:
        """The ranks that print an error of this kind at this line. Where nobody has a number: all that ended, where as many print
        it, or the only one that ended badly, where it is printed once."""
        alike = self._same_errors.get((_kind(error), error.site or _NUMBER.sub("#", error.words)), [])
        ranks = {one.rank for one in alike if one.rank >= 0} | ({error.rank} - {-1})
        ends = self.recording.job.ends
        if not ranks and 1 < len(ends) == len(alike):
            return tuple(sorted(ends))
        bad = [rank for rank, end in ends.items() if not end.ended_by_launcher]
        return tuple(sorted(ranks or bad)) if ranks or len(bad) == 1 >= len(alike) else ()

    @cached_property
    def is_of_a_job(self) -> bool:
        """Whether anything shows that this is the log of ranks: one that prints its number, a launcher, training, torch's or
        CUDA's words. Any program may print a traceback."""
        clues = self.recording.clues
        return bool(self.recording.job.ends) or any(
            clue.rank >= 0 or clue.kind is not ClueKind.EXCEPTION or _OF_TORCH.search(f"{clue.words} {clue.site.path}")
            for clue in clues
        )

    @cached_property
    def left_alone(self) -> frozenset[int]:
        """Ranks that print that a peer was gone."""
        gone = (clue.rank for clue in self.recording.clues if clue.kind is ClueKind.PEER_GONE)
        raised = (clue.rank for clue in self.lines(ClueKind.EXCEPTION) if lacks_a_peer(clue.words))
        return frozenset({*gone, *raised} - {-1})

    def goes_on_after(self, clue: Clue) -> int:
        """How many lines the log has after this one where none of them tells of an error or an end: then what it tells of did not
        end the job. 0 where it may have."""
        if self.recording.job.ends or not (clue.lines_after >= GOES_ON_LINES or self.trains_on):
            return 0
        later = (one for one in self.recording.clues if one.line_number > clue.line_number)
        return clue.lines_after if self.trains_on or all(one.kind in _SPEAKS_OF_NOTHING for one in later) else 0

    @cached_property
    def trains_on(self) -> bool:
        """Whether training is spoken of behind everything that tells of something wrong, more often than by ranks that have not
        noticed yet: an exception was caught, or the job was started again."""
        after = max((clue.numbers[0] for clue in self.lines(ClueKind.TRAINING) if clue.numbers), default=0)
        return after >= max(3, 2 * self.recording.world_size) and not self.recording.job.ends

    @cached_property
    def has_finished(self) -> bool:
        """Whether rank 0 came to the end of its program: there torch complains of a group that nobody has destroyed."""
        last = self.last_words(0)
        return last is not None and "destroy_process_group() was not called before program exit" in last.words

    @cached_property
    def tells_of_no_end(self) -> bool:
        """Whether nothing in the log but warnings of NCCL could be about something wrong."""
        return not self.recording.job.ends and all(clue.kind in _SPEAKS_OF_NOTHING for clue in self.recording.clues)

    @cached_property
    def killed_for_memory(self) -> tuple[int, ...]:
        """The ranks that the kernel has killed, where the log says which."""
        told = {clue.rank for clue in self.lines(ClueKind.KILLED_FOR_MEMORY) if clue.rank >= 0}
        return tuple(sorted(told | {rank for rank, end in self.recording.job.ends.items() if end.killed_for_memory}))

    @cached_property
    def other_ends(self) -> list[Clue]:
        """What launchers and torch say of processes that ended, but for what follows from timeouts that the log shows."""
        timed_out = bool(self.lines(ClueKind.TIMED_OUT))
        return [one for one in self.lines(ClueKind.ENDED) if not (timed_out and one.operation == ENDED_BY_TIMEOUT)]

    @cached_property
    def crash(self) -> Clue | None:
        """The crash that faulthandler has dumped, where one rank alone ended by its signal and there is one dump of it."""
        dumped = [one for one in self.lines(ClueKind.ENDED) if one.operation in SIGNALS and (one.site or one.inside)]
        number = SIGNALS[dumped[0].operation] if len(dumped) == 1 else 0
        ended = [rank for rank, end in self.recording.job.ends.items() if end.signal == number]
        return dumped[0] if number and ended == list(self.first_ends) and len(ended) == 1 else None

    @cached_property
    def first_task(self) -> Clue | None:
        """What srun says of the tasks that ended badly, where they are ranks: of a crash rather than of an exit code."""
        bad = [c for c in self.lines(ClueKind.ENDED) if any(rank in self.first_ends for rank in c.numbers)]
        return min(bad, key=lambda clue: "exit code" in clue.operation, default=None)

    @cached_property
    def never_wrote(self) -> tuple[int, ...]:
        """Ranks whose key in the store others wait for."""
        found = self.lines(ClueKind.NOT_ARRIVED)
        return tuple(sorted({number for clue in found for number in clue.numbers} - {clue.rank for clue in found}))

    @cached_property
    def first_ends(self) -> dict[int, RankEnd]:
        """The ranks that ended badly and not by the launcher, in the second in which the first of them did."""
        ends = sorted(self.recording.job.ends.items())
        bad = {r: e for r, e in ends if not e.ended_by_launcher and (e.signal or e.exit_code)}
        first = min((end.at_ns for end in bad.values() if end.at_ns), default=0)
        return {rank: end for rank, end in bad.items() if end.at_ns == first}


def claimed(findings: Iterable[Finding], specificity: int) -> Iterator[Finding]:
    """The findings as a check's explanation of what the log shows."""
    return (replace(finding, explains=(KEY,), specificity=specificity) for finding in findings)


def from_line(
    clue: Clue,
    title: str,
    ranks: Iterable[int],
    confidence: Confidence,
    why: str,
    cure: Prescription,
    specificity: int,
) -> Finding:
    """A check's explanation of what the log shows, pointing at one line of it."""
    return Finding(
        title=title,
        ranks=tuple(ranks),
        confidence=confidence,
        place=clue.site,
        evidence={"line of the log": clue.line_number, "words": clue.words[:300]},
        why=f"line {clue.line_number} of {clue.file or 'the log'}; {why}",
        prescriptions=(cure,),
        explains=(KEY,),
        specificity=specificity,
    )


OWN_ERROR = "it is the first error that is not about a lost peer"  # why an exception in a log is the cause


def from_own_error(log: LogFacts, title: str, cure: Prescription, specificity: int = 90) -> Finding:
    """A check's explanation of the first exception of the program itself, which its words name. `log.own_error` is there."""
    assert log.own_error is not None
    ranks, lines = log.same_error(log.own_error), log.goes_on_after(log.own_error)
    why = f"the log goes on for {lines} lines and tells of no end: it may have been caught" if lines else OWN_ERROR
    found = from_line(log.own_error, title, ranks, POSSIBLE if lines else LIKELY, why, cure, specificity)
    if not log.trains_on:
        return found
    went_on = "caught, or mended by a start anew: the training goes on after it, and the log tells of no end"
    return replace(found, severity=NOTE, why=f"{found.why.partition(';')[0]}; {went_on}")


def _kind(clue: Clue) -> str:
    """`JSONDecodeError` of `json.decoder.JSONDecodeError: ...`."""
    return clue.words.partition(":")[0].rpartition(".")[2]


def of_one_group(group: str) -> Confidence:
    """How sure it is that the numbers of ranks that print this group's name count the same calls; "" may be several groups."""
    return LIKELY if group else POSSIBLE


def call_in(clue: Clue) -> str:
    """`ALLREDUCE #808 of default_pg`, `a call of tp_1`: what the line says that a rank timed out in."""
    if clue.numbers[0] < 0:
        return f"{clue.operation or 'a call'}{_of_group(clue.group)}"
    return f"{clue.operation or 'call'} #{clue.numbers[0]}{_of_group(clue.group)}"


def who(clue: Clue) -> tuple[int, ...]:
    """Who printed the line, where the log says."""
    return (clue.rank,) if clue.rank >= 0 else ()


def counted(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _of_group(group: str) -> str:
    """` of default_pg`, ` of mesh_tp (PG ID 2 PG GUID 9)`: several groups may have one name, and everybody's is the only one."""
    match = _NAMED_GROUP.fullmatch(group)
    if match is None:
        return f" of {group}" if group else ""
    return f" of {match[2]}" if match[2] == "default_pg" else f" of {match[2]} ({match[1]})"


def _elements(clue: Clue) -> str:
    """`64 elements`, `64 elements in, 8 out`."""
    taken, given = clue.numbers[2], clue.numbers[3]
    return counted(taken, "element") + (f" in, {given} out" if taken != given else "")
