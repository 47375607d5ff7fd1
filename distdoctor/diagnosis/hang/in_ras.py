"""What NCCL's RAS gives away: processes that do not answer, and hosts that have launched less than the rest of a communicator.

One answer is a snapshot of a job that may be moving, and RAS knows nothing of the devices: only a process that does not answer is
more than a possibility.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Confidence, Finding, Prescription
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.recording.flight.backend_state import UNKNOWN, BackendState, GroupState, Pending
from distdoctor.recording.rank_set import named
from distdoctor.recording.ras_report import Communicator, RasReport

AGAIN = (
    "ask RAS again after a few seconds: counts that do not change mean a hang; distdoctor hang-dump shows the stacks"
)


class RasRanks:
    """The ranks of a report as those of the job: of the largest communicator, and of every other one by process."""

    def __init__(self, report: RasReport) -> None:
        self.report = report
        self.world = max(report.communicators, key=lambda one: one.size, default=None)
        known = self.world.processes if self.world is not None else {}
        counts = Counter(known.values())
        self._by_process = {process: rank for rank, process in known.items() if process and counts[process] == 1}

    def rank_of(self, communicator: Communicator, rank: int) -> int | None:
        """The job's rank; None where nothing tells."""
        if self.world is not None and communicator.size == self.world.size:
            return rank
        return self._by_process.get(communicator.processes.get(rank, ""))

    def absent(self, *, dead: bool) -> dict[int, str]:
        """Rank -> process of those that do not answer."""
        found = {}
        for communicator in self.report.communicators:
            for one in communicator.absent:
                rank = self.rank_of(communicator, one.rank)
                if one.is_dead == dead and rank is not None:
                    found[rank] = one.process or "its process"
        return dict(sorted(found.items()))

    def failed(self) -> dict[int, int]:
        """Rank -> NCCL's error."""
        found = {}
        for communicator in self.report.communicators:
            for one, error in communicator.failed.items():
                rank = self.rank_of(communicator, one)
                if rank is not None:
                    found[rank] = error
        return found


def dead_processes(ranks: RasRanks) -> Iterator[Finding]:
    """Processes that RAS could not reach for a minute."""
    found = ranks.absent(dead=True)
    if found:
        yield _finding(
            f"{'is' if len(found) == 1 else 'are'} considered dead by NCCL's RAS: {_list(found)}",
            found,
            LIKELY,
            "RAS could not reach the process for 60 s: it has ended, or its host is unreachable",
            Prescription(
                "mend-the-first-failure", change=f"look at the end of {named(found)}: its output, dmesg, the host"
            ),
        )


def silent_processes(ranks: RasRanks) -> Iterator[Finding]:
    """Processes whose RAS thread does not answer."""
    found = ranks.absent(dead=False)
    if found:
        yield _finding(
            f"{'does' if len(found) == 1 else 'do'} not answer NCCL's RAS: {_list(found)}",
            found,
            LIKELY,
            "the thread that answers needs only a CPU: the process is stopped or frozen, or its host is unreachable",
            Prescription(
                "continue-the-process", change=f"look at the state of {_list(found)}: ps -o pid,stat,wchan -p PID"
            ),
        )


def failed_ranks(ranks: RasRanks) -> Iterator[Finding]:
    """Ranks on which NCCL has failed."""
    found = ranks.failed()
    if found:
        errors = ", ".join(f"rank {rank}: ncclResult_t {error}" for rank, error in sorted(found.items()))
        yield _finding(
            f"failed in NCCL ({errors})",
            found,
            LIKELY,
            "RAS reports an asynchronous or initialisation error of the communicator",
            Prescription("gather-backend-evidence"),
        )


def other_operations(ranks: RasRanks) -> Iterator[Finding]:
    """Few ranks of a communicator that have launched more of one kind of call and less of another than the rest."""
    for communicator in ranks.report.communicators:
        odd: dict[int, str] = {}
        usual = _usual(communicator)
        for rank, counts in communicator.counts.items() if usual is not None else ():
            assert usual is not None
            more = [name for name in communicator.operations if counts.get(name, 0) > usual.get(name, 0)]
            less = [name for name in communicator.operations if counts.get(name, 0) < usual.get(name, 0)]
            one = ranks.rank_of(communicator, rank)
            if more and less and one is not None:
                odd[one] = f"{more[0]} instead of {less[0]}"
        if odd and 2 * len(odd) < communicator.size:
            yield _finding(
                f"launched {next(iter(odd.values()))} in communicator {communicator.name}",
                odd,
                POSSIBLE,
                "RAS counts the calls that each host has launched, by kind; most ranks agree, these do not",
                Prescription("same-operation", change=AGAIN),
            )
            return


def hosts_behind(ranks: RasRanks) -> Iterator[Finding]:
    """Ranks that have launched less than others of a communicator, and are not waiting in another one."""
    progress = _progress(ranks)
    for absence in progress.absences:
        most = absence.call.pending.number
        yield _finding(
            f"has launched {absence.last} calls in communicator {absence.call.group.name}, others have launched {most}",
            (absence.rank,),
            POSSIBLE,
            f"{named(absence.waiting)} {'is' if len(absence.waiting) == 1 else 'are'} ahead in it, and rank {absence.rank} "
            "is behind in every communicator in which the ranks differ",
            Prescription("bound-the-wait", change=AGAIN),
        )


def left_open(report: RasReport) -> Iterator[str]:
    """RAS alone never shows that a job is healthy: it does not know what the devices have completed."""
    count = len(report.communicators)
    what = f"{count} communicator{'' if count == 1 else 's'}"
    yield f"NCCL's RAS counts what hosts have launched ({what}), not what devices completed"
    for communicator in report.communicators:
        if communicator.starting:
            yield f"{named(communicator.starting)} of communicator {communicator.name} are still being initialised"


def _usual(communicator: Communicator) -> Mapping[str, int] | None:
    """What most ranks have launched, None where no majority has launched the same."""
    found = Counter(tuple(sorted(counts.items())) for counts in communicator.counts.values())
    best, count = found.most_common(1)[0] if found else ((), 0)
    return dict(best) if 2 * count > len(communicator.counts) else None


def _progress(ranks: RasRanks) -> DeviceProgress:
    """The counts as the engine takes them: who is ahead in a communicator waits in its last call for those that are behind."""
    groups: dict[int, list[GroupState]] = {}
    for number, communicator in enumerate(ranks.report.communicators):
        totals = {
            one: sum(counts.values())
            for rank, counts in communicator.counts.items()
            if (one := ranks.rank_of(communicator, rank)) is not None
        }
        most, least = max(totals.values(), default=0), min(totals.values(), default=0)
        members = tuple(sorted(totals))  # one for all: a list per rank would be ranks x ranks
        for rank, total in totals.items():
            waits = total == most > least
            pending = (Pending("call", total, "launched", order=number),) if waits else ()
            state = GroupState(communicator.name, "", total, UNKNOWN, total - waits, pending, members=members)
            groups.setdefault(rank, []).append(state)
    states = {rank: BackendState(rank, tuple(found)) for rank, found in groups.items()}
    return DeviceProgress(states, tuple(sorted(states)))


def _finding(
    title: str, ranks: Mapping[int, object] | tuple[int, ...], confidence: Confidence, why: str, cure: Prescription
) -> Finding:
    return Finding(title=title, ranks=tuple(ranks), confidence=confidence, why=why, prescriptions=(cure,))


def _list(found: Mapping[int, str]) -> str:
    return ", ".join(f"{process} (rank {rank})" for rank, process in list(found.items())[:4])
