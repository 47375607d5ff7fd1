"""What a plain log gives away about a job that stood still or died: the lowest grade of evidence, quoted line by line.

NCCL's watchdog prints, per rank, what timed out and how far the rank had come: the same two numbers that dumps hold, so the same
engine (`device_progress`) looks at them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Confidence, Finding, Prescription
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.diagnosis.hang.in_ras import (
    RasRanks,
    dead_processes,
    failed_ranks,
    hosts_behind,
    other_operations,
    silent_processes,
)
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.flight.backend_state import UNKNOWN, BackendState, GroupState, Pending
from distdoctor.recording.job_log import LAUNCHER
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording

FOLLOWS = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "ChildFailedError",
    "SignalException",
    "KeyboardInterrupt",
)
# Operations whose members may bring different sizes, or of which one entry stands for many.
_ANY_SIZE = frozenset(
    {"ALLTOALL", "ALLTOALL_BASE", "COALESCED", "SEND", "RECV", "GATHER", "SCATTER", "ALLGATHER", "REDUCE_SCATTER"}
)
_LOOK = "run it under distdoctor run, or set TORCH_FR_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT and examine the dumps"


@dataclass(frozen=True)
class LogVerdict:
    """The fact that a plain log is all there is: one cause, which the check of its kind puts into words."""

    streams: ClassVar[frozenset[str]] = frozenset()
    recording: Recording

    @classmethod
    def of(cls, recording: Recording) -> Self:
        if recording.ranks or recording.stacks or recording.backend:
            raise NotApplicable("there is something better than a job log")
        if not (recording.clues or recording.ras or recording.job.launcher == LAUNCHER):
            raise NotApplicable("there is no job log, nor an answer of NCCL's RAS")
        return cls(recording)

    @cached_property
    def cause(self) -> tuple[str, tuple[Finding, ...]]:
        """(kind, findings without a code) of what explains the text best; what comes later here follows from the rest."""
        for kind, found in (
            *self._in_ras(),
            (DIED, self._raised()),
            (DIED, self._killed_for_memory()),
            (OPERATION, self._disagreeing("operation")),
            (SIZE, self._disagreeing("size")),
            (SIZE, self._preambles()),
            (SKIPPED, self._out_of_step()),
            (HOST, self._hosts()),
            (HOST, self._lagging()),
            (DEVICE, self._devices()),
            (NEVER_CAME, self._not_arrived()),
            (HOST, self._silent()),
            (DEVICE, self._together()),
            (DIED, self._ended()),
            (DEVICE, self._warnings()),
            (DIED, self._peer_gone()),
        ):
            findings = tuple(found)
            if findings:
                return kind, findings
        return "", ()

    def _in_ras(self) -> Iterator[tuple[str, Iterator[Finding]]]:
        if self.recording.ras is not None:
            ranks = RasRanks(self.recording.ras)
            yield DIED, dead_processes(ranks)
            yield STOPPED, silent_processes(ranks)
            yield DEVICE, failed_ranks(ranks)
            yield OPERATION, other_operations(ranks)
            yield HOST, hosts_behind(ranks)

    def told(self, kind: str) -> Iterator[Finding]:
        """The findings, when the cause is of this kind."""
        return iter(self.cause[1] if self.cause[0] == kind else ())

    def _of(self, kind: ClueKind) -> list[Clue]:
        return [clue for clue in self.recording.clues if clue.kind is kind]

    @cached_property
    def timeouts(self) -> dict[tuple[str, int], Clue]:
        """(group, rank) -> the first timeout that its watchdog printed."""
        found: dict[tuple[str, int], Clue] = {}
        for clue in self._of(ClueKind.TIMED_OUT):
            if clue.rank >= 0:
                found.setdefault((clue.group, clue.rank), clue)
        return found

    @cached_property
    def progress(self) -> DeviceProgress:
        """How far each rank had come, as its watchdog says."""
        groups: dict[int, dict[str, GroupState]] = defaultdict(dict)
        work: dict[tuple[str, int], Clue] = {}
        for clue in self._of(ClueKind.WORK):
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

    # --- what the watchdogs say ----------------------------------------------------------------------------------------------

    def _disagreeing(self, what: str) -> Iterator[Finding]:
        """Ranks that timed out at one number of one group in different operations, or with different sizes."""
        numbers: dict[tuple[str, int], list[Clue]] = defaultdict(list)
        for (group, _), clue in sorted(self.timeouts.items()):
            numbers[group, clue.numbers[0]].append(clue)
        for (group, number), clues in numbers.items():
            operations = {clue.operation for clue in clues}
            if what == "size" and (len(operations) > 1 or operations & _ANY_SIZE):
                continue
            values: dict[str, list[Clue]] = defaultdict(list)
            for clue in clues:
                sizes = f"{clue.numbers[2]} elements in, {clue.numbers[3]} out"
                values[clue.operation if what == "operation" else sizes].append(clue)
            if len(values) > 1:
                yield _differing(what, values, f"#{number}{_of_group(group)}")
                return

    def _out_of_step(self) -> Iterator[Finding]:
        """A rank whose last call is one that the others have completed: it is short of a call, its numbers lag behind."""
        for one in self.progress.stopped.values():
            if not one.ahead:
                clue = self.timeouts[one.call.group.name, one.call.rank]
                others = [
                    c for (group, rank), c in self.timeouts.items() if group == clue.group and rank in one.completed_by
                ]
                furthest = max((c.numbers[0] for c in others), default=one.call.pending.number + 1)
                yield _finding(
                    clue,
                    f"is at {clue.operation} #{clue.numbers[0]}{_of_group(clue.group)}, the others are at #{furthest}: "
                    f"it has left out {_counted(furthest - clue.numbers[0], 'call')}",
                    (one.call.rank,),
                    LIKELY,
                    f"{named(one.completed_by)} completed #{clue.numbers[0]} long ago, "
                    f"and rank {one.call.rank} has enqueued nothing after it",
                    Prescription(
                        "call-on-every-rank", change=f"compare what rank {one.call.rank} calls with the others; {_LOOK}"
                    ),
                )

    def _hosts(self) -> Iterator[Finding]:
        """Ranks that have completed all that they enqueued, which is less than the others wait for."""
        for absence in self.progress.absences:
            waiting = self.timeouts[absence.call.group.name, absence.waiting[0]]
            yield _finding(
                waiting,
                f"did not come to {waiting.operation} #{waiting.numbers[0]}{_of_group(waiting.group)}: its host stopped",
                (absence.rank,),
                LIKELY,
                f"{named(absence.waiting)} timed out in it; rank {absence.rank} has enqueued #{absence.last} "
                "at the most, and completed that",
                Prescription(
                    "bound-the-wait", change=f"look at what rank {absence.rank} did after its last call; {_LOOK}"
                ),
            )

    def _lagging(self) -> Iterator[Finding]:
        """Whom torch's own desync report blames, when it says that they did not join."""
        told = [clue for clue in self._of(ClueKind.LAGGING) if "didn't join" in clue.words]
        if told:
            ranks = tuple(sorted({clue.numbers[0] for clue in told}))
            yield _finding(
                told[0],
                f"did not come to #{told[0].numbers[1]}, as torch's desync report says",
                ranks,
                LIKELY,
                f"line {told[0].line_number} of the log",
                Prescription("bound-the-wait", change=f"look at what {named(ranks)} did after its last call; {_LOOK}"),
            )

    def _devices(self) -> Iterator[Finding]:
        stopped = [one for one in self.progress.stopped.values() if one.ahead]
        if stopped:
            ranks = tuple(sorted(one.call.rank for one in stopped))
            clue = self.timeouts[stopped[0].call.group.name, stopped[0].call.rank]
            yield _finding(
                clue,
                f"the device stands at {clue.operation} #{clue.numbers[0]}{_of_group(clue.group)}, which the others completed",
                ranks,
                LIKELY,
                f"its host has enqueued {stopped[0].ahead} more, so it is the device or its links",
                Prescription("gather-backend-evidence"),
            )

    def _silent(self) -> Iterator[Finding]:
        """Ranks that print elsewhere and whose watchdog did not time out, while those of all others did in one call."""
        calls = {(group, clue.numbers[0], clue.operation) for (group, _), clue in self.timeouts.items()}
        seen = {rank for _, rank in self.timeouts}
        silent = tuple(rank for rank in range(self.recording.world_size) if rank not in seen)
        everybodys = all("default_pg" in group or group in ("PG 0", "PG ID 0 PG GUID 0") for group, _, _ in calls)
        if everybodys and len(calls) == 1 and silent and len(silent) < len(seen):
            clue = next(iter(self.timeouts.values()))
            yield _finding(
                clue,
                f"printed no timeout, while {named(seen)} timed out in {clue.operation} #{clue.numbers[0]}: "
                "it had not come there",
                silent,
                POSSIBLE,
                "whoever waits for nobody prints nothing: it was held up elsewhere, or its lines are not in this log",
                Prescription("bound-the-wait", change=f"look at what {named(silent)} did; {_LOOK}"),
            )

    def _together(self) -> Iterator[Finding]:
        """All that printed anything timed out in the same call."""
        groups: dict[str, list[Clue]] = defaultdict(list)
        for (group, _), clue in sorted(self.timeouts.items()):
            groups[group].append(clue)
        for group, clues in list(groups.items())[:1]:
            yield _finding(
                clues[0],
                f"timed out in {clues[0].operation} #{clues[0].numbers[0]}{_of_group(group)}, all that printed anything",
                tuple(sorted(clue.rank for clue in clues)),
                POSSIBLE,
                f"{_counted(len(clues), 'rank')} printed it; who is not among them, and belongs to the group, did not come",
                Prescription("record-the-job", change=_LOOK),
            )

    # --- everything else -------------------------------------------------------------------------------------------------------

    def _raised(self) -> Iterator[Finding]:
        """An exception of the program itself."""
        for clue in self._of(ClueKind.EXCEPTION):
            if not clue.words.rpartition("torch.distributed.")[2].startswith(FOLLOWS) and not clue.words.startswith(
                FOLLOWS
            ):
                yield _finding(
                    clue,
                    f"{'failed' if clue.rank >= 0 else 'a rank failed'} with {clue.words[:160]}",
                    _ranks(clue),
                    LIKELY,
                    "it is the first error that is not about a lost peer",
                    Prescription(
                        "mend-the-first-failure",
                        change=f"mend the {clue.words.partition(':')[0]}; the other errors follow from it",
                    ),
                )
                return

    def _killed_for_memory(self) -> Iterator[Finding]:
        killed = [rank for rank, end in sorted(self.recording.job.ends.items()) if end.killed_for_memory]
        lines = self._of(ClueKind.KILLED_FOR_MEMORY)
        if lines:
            yield _finding(
                lines[0],
                "was killed by the kernel for lack of memory"
                if killed
                else "the kernel killed a process for lack of memory",
                tuple(killed),
                LIKELY if killed else POSSIBLE,
                "the kernel says so" + ("" if killed else "; whether the process was a rank the log does not say"),
                Prescription(
                    "mend-the-first-failure", change="give the host more memory, or the ranks and their loaders less"
                ),
            )

    def _preambles(self) -> Iterator[Finding]:
        for clue in self._of(ClueKind.SIZES)[:1]:
            came, expected = clue.numbers
            found = _finding(
                clue,
                f"received {came} bytes where it expected {expected}: a peer issued another size or another operation",
                _ranks(clue),
                LIKELY,
                f"gloo aborts the receiver, which may be innocent: {came} bytes are {came // 4} float32, "
                f"{expected} are {expected // 4}",
                Prescription(
                    "same-shape",
                    change="print the shapes of all ranks before this call, or run it under distdoctor run",
                ),
            )
            found.evidence.update({"bytes came": came, "bytes expected": expected})
            yield found

    def _not_arrived(self) -> Iterator[Finding]:
        found = self._of(ClueKind.NOT_ARRIVED)
        waited_for = {number for clue in found for number in clue.numbers} - {clue.rank for clue in found}
        joined = self._of(ClueKind.JOINED)
        if found and waited_for:
            ranks = tuple(sorted(waited_for))
            yield _finding(
                found[0],
                f"{'has' if len(ranks) == 1 else 'have'} not come: others wait for its key in the store",
                ranks,
                LIKELY,
                "the key ends in the rank within its group that never wrote it",
                Prescription(
                    "start-every-rank",
                    change=f"find out whether {named(ranks)} was started, and what it did before init_process_group",
                ),
            )
        elif joined:
            came, expected = joined[0].numbers
            yield _finding(
                joined[0],
                f"only {came} of {expected} ranks came to the store",
                (),
                LIKELY,
                "which ones are missing it does not say",
                Prescription(
                    "start-every-rank", change=f"start all {expected} ranks with the same MASTER_ADDR and MASTER_PORT"
                ),
            )

    def _ended(self) -> Iterator[Finding]:
        for rank, end in sorted(self.recording.job.ends.items()):
            if not end.ended_by_launcher and (end.signal or end.exit_code):
                how = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
                yield Finding(
                    title=f"ended with {how}",
                    ranks=(rank,),
                    confidence=POSSIBLE if end.signal == 6 else LIKELY,  # gloo aborts innocent ranks
                    why="as torchrun lists it; it names whoever ended first, which is not always the cause",
                    prescriptions=(
                        Prescription(
                            "mend-the-first-failure",
                            change=f"look at the output of rank {rank}"
                            + (" and at dmesg (out of memory?)" if end.signal == 9 else ""),
                        ),
                    ),
                )
                return

    def _warnings(self) -> Iterator[Finding]:
        for clue in self._of(ClueKind.WARNING)[:1]:
            yield _finding(
                clue,
                f"NCCL warned: {clue.words.partition('NCCL WARN ')[2][:160]}",
                _ranks(clue),
                POSSIBLE,
                "nothing else in the log says more",
                Prescription("gather-backend-evidence"),
            )

    def _peer_gone(self) -> Iterator[Finding]:
        found = [*self._of(ClueKind.PEER_GONE), *self._of(ClueKind.WAITED)]
        told = {clue.rank for clue in found if clue.rank >= 0}
        if found:
            finding = _finding(
                found[0],
                f"a peer has left, or did not come, while {named(told) if told else 'others'} still waited",
                (),
                POSSIBLE,
                "whoever printed this is not the one that left",
                Prescription(
                    "record-the-job", change="look for a rank that printed nothing; distdoctor run would have named it"
                ),
            )
            finding.evidence["innocent ranks"] = sorted(told)
            yield finding


DIED, STOPPED, OPERATION, SIZE, SKIPPED, HOST, DEVICE, NEVER_CAME = (
    "died", "stopped", "operation", "size", "skipped", "host", "device", "never came",
)  # fmt: skip


def _finding(
    clue: Clue, title: str, ranks: Iterable[int], confidence: Confidence, why: str, cure: Prescription
) -> Finding:
    return Finding(
        title=title,
        ranks=tuple(ranks),
        confidence=confidence,
        place=clue.site,
        evidence={"line of the log": clue.line_number, "words": clue.words[:300]},
        why=f"line {clue.line_number} of the log; {why}",
        prescriptions=(cure,),
    )


def _differing(what: str, values: Mapping[str, list[Clue]], number: str) -> Finding:
    """The smaller side is the odd one; of two equal ones neither is."""
    sides = sorted(values.items(), key=lambda side: (-len(side[1]), side[1][0].rank))
    is_tie = len(sides[0][1]) == len(sides[1][1])
    odd = [clue for _, side in (sides if is_tie else sides[1:]) for clue in side]
    table = "; ".join(f"{named(clue.rank for clue in side)}: {value}" for value, side in sides)
    word = {"operation": "issued another operation", "size": "has another size"}[what]
    return _finding(
        odd[0],
        f"the ranks disagree on {what} at {number}: {table}" if is_tie else f"{word} at {number}: {table}",
        sorted(clue.rank for clue in odd),
        LIKELY,
        "each rank's watchdog prints what it timed out in",
        Prescription(
            "same-operation" if what == "operation" else "same-shape",
            change=f"make the ranks agree at {number}; {_LOOK}",
        ),
    )


def _of_group(group: str) -> str:
    return f" of {group}" if group else ""


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _ranks(clue: Clue) -> tuple[int, ...]:
    return (clue.rank,) if clue.rank >= 0 else ()
