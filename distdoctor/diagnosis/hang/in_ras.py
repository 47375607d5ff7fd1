"""What NCCL's RAS gives away: processes that do not answer, and hosts that have launched less than the rest of a communicator.

One answer is a snapshot of a job that may be moving, and RAS knows nothing of the devices: only a process that does not answer is
more than a possibility. Of several answers the newest is judged, and whoever has moved since the one before it is alive. A host
that is behind in both with the same counts has stopped, where those that wait for it launched nothing either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property

from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Confidence, Finding, Prescription
from distdoctor.diagnosis.hang.device_progress import Absence, DeviceProgress
from distdoctor.recording.flight.backend_state import UNKNOWN, BackendState, GroupState, Pending
from distdoctor.recording.rank_set import named
from distdoctor.recording.ras_report import Communicator, RasReport

AGAIN = (
    "ask RAS again after a few seconds and examine both answers together: counts that do not change mean a hang, counts that "
    "rise mean that the job runs; distdoctor hang-dump shows the stacks"
)
STACKS = "look at its stack (distdoctor hang-dump, py-spy dump): its host has not called what the others wait in"
SHORTEST_WAIT = 5.0  # seconds; a step may take longer than there was between two answers that are closer than this


class RasRanks:
    """The ranks of a report as those of the job: of the largest communicator, and of every other one by process."""

    def __init__(self, report: RasReport) -> None:
        self.report = report
        self.world = max(report.communicators, key=lambda one: one.size, default=None)
        known = self.world.processes if self.world is not None else {}
        counts = Counter(known.values())
        self._by_process = {process: rank for rank, process in known.items() if process and counts[process] == 1}

    @cached_property
    def interval(self) -> str:
        """`between 14:01:53 and 14:02:53`, else by the names of the two last answers; "" of a single one."""
        if not self.report.earlier:
            return ""
        one, other = self.report.earlier[-1], self.report
        if one.asked_at and other.asked_at:
            days = {one.asked_at[:10], other.asked_at[:10]}
            start = 11 if len(days) == 1 else 0  # YYYY-MM-DD and what follows it
            return f"between {one.asked_at[start:]} and {other.asked_at[start:]}"
        return f"between {one.name} and {other.name}" if one.name and other.name else "between the two last answers"

    @cached_property
    def seconds(self) -> float | None:
        """How long after the answer before it the newest was given, None where they do not both say when."""
        if not self.report.earlier:
            return None
        try:
            one, other = (datetime.fromisoformat(a.asked_at) for a in (self.report.earlier[-1], self.report))
            return (other - one).total_seconds()
        except (ValueError, TypeError):
            return None

    def has_moved(self, communicator: Communicator, rank: int) -> bool | None:
        """Whether a rank of the communicator has launched anything there since the answer before; None where nothing tells."""
        if not self.report.earlier:
            return None
        before = self.report.earlier[-1].by_key.get(communicator.key)
        then = before.counts.get(rank) if before is not None else None
        now = communicator.counts.get(rank)
        if then is None or now is None:
            return None
        if any(then[name] != now[name] for name in then.keys() & now.keys()):
            return True
        return False if then and then.keys() == now.keys() else None

    @cached_property
    def moved(self) -> dict[int, bool]:
        """Rank -> whether it has launched anything anywhere since the answer before; only those of which that is known."""
        found: dict[int, bool] = {}
        for communicator in self.report.communicators:
            for rank in communicator.counts:
                one, moved = self.rank_of(communicator, rank), self.has_moved(communicator, rank)
                if one is not None and moved is not None:
                    found[one] = found.get(one, False) or moved
        return found

    def behind(self, communicator: Communicator) -> dict[int, int]:
        """The job's rank -> that of the communicator, of those that have launched less there than another one."""
        totals = {rank: sum(counts.values()) for rank, counts in communicator.counts.items()}
        most = max(totals.values(), default=0)
        ranks = ((self.rank_of(communicator, rank), rank) for rank, total in totals.items() if total < most)
        return {one: rank for one, rank in ranks if one is not None}

    @cached_property
    def falling_back(self) -> dict[int, str]:
        """Rank -> `launched 1 call between ..., and is 99 behind`: those that moved by less than they are behind."""
        found: dict[int, str] = {}
        earlier = self.report.earlier[-1].by_key if self.report.earlier else {}
        for communicator in self.report.communicators:
            before = earlier.get(communicator.key)
            most = max((sum(counts.values()) for counts in communicator.counts.values()), default=0)
            for one, rank in self.behind(communicator).items() if before is not None else ():
                total = sum(communicator.counts[rank].values())
                own = total - sum(before.counts.get(rank, {}).values()) if before is not None else 0
                if own < most - total:
                    found[one] = (
                        f"launched {own} call{'' if own == 1 else 's'} {self.interval}, and is {most - total} behind"
                    )
        return found

    @cached_property
    def stands(self) -> bool:
        """Whether no rank launched anything between the two last answers."""
        return bool(self.moved) and not any(self.moved.values()) and not _too_soon(self)

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
            f"RAS could not reach the process for 60 s: it has ended, or its host is unreachable{_of_the_others(ranks)}",
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
            "the thread that answers needs only a CPU: the process is stopped or frozen, or its host is "
            f"unreachable{_of_the_others(ranks)}",
            Prescription(
                "continue-the-process", change=f"look at the state of {_list(found)}: ps -o pid,stat,wchan -p PID"
            ),
        )


def _of_the_others(ranks: RasRanks) -> str:
    """What those that answered did meanwhile, for behind a sentence."""
    still = sorted(rank for rank, moved in ranks.moved.items() if not moved)
    return f"; {named(still)} launched nothing {ranks.interval}" if still else ""


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
            Prescription(
                "gather-backend-evidence",
                change=f"look at what {named(found)} printed (NCCL_DEBUG=INFO) and at the network and devices there: ibstat, "
                "dmesg; an error of the network is as often the other end's",
            ),
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
            if more and less and one is not None and not ranks.has_moved(communicator, rank):
                odd[one] = f"{more[0]} instead of {less[0]}"
        if odd and 2 * len(odd) < communicator.size:
            yield _finding(
                f"launched {next(iter(odd.values()))} in communicator {communicator.name}",
                odd,
                LIKELY if ranks.stands else POSSIBLE,
                "RAS counts the calls that each host has launched, by kind; most ranks agree, these do not"
                + (f"; no rank launched anything {ranks.interval}" if ranks.stands else ""),
                Prescription("same-operation", change=AGAIN),
            )
            return


def hosts_behind(ranks: RasRanks) -> Iterator[Finding]:
    """Ranks that have launched less than others of a communicator, and are not waiting in another one. Whoever has moved since
    the answer before is none of them."""
    together: dict[tuple[int, str, bool | None, bool], list[Absence]] = {}
    for absence in _progress(ranks).absences:
        number = absence.call.pending.order
        communicator = ranks.report.communicators[number]
        moved = _moved_by_rank(ranks, communicator)
        if moved.get(absence.rank):
            continue
        others_moved = any(moved.get(one) for one in absence.waiting)
        key = (number, _counted(communicator, ranks, absence), moved.get(absence.rank), others_moved)
        together.setdefault(key, []).append(absence)
    for (number, counts, moved_on, others_moved), found in together.items():
        behind = tuple(sorted(one.rank for one in found))
        if moved_on is None and _are_most(ranks.report.communicators[number], behind):
            continue
        name = ranks.report.communicators[number].name
        waiting = sorted(found[0].waiting)
        are = "is" if len(waiting) == 1 else "are"
        stands = moved_on is False
        likely = stands and not others_moved and not _too_soon(ranks)
        yield _finding(
            f"{'has' if len(behind) == 1 else 'have'} launched {counts.format(where=f'in communicator {name}')}",
            behind,
            LIKELY if likely else POSSIBLE,
            f"{named(waiting)} {are} ahead in it; {_standing(ranks, behind, others_moved) if stands else _SNAPSHOT}",
            Prescription("bound-the-wait", change=STACKS if likely else AGAIN),
        )


def _are_most(communicator: Communicator, behind: Sequence[int]) -> bool:
    """Whether most of a communicator is behind: then a few have come early to the next call, as somebody does in each."""
    return 2 * len(behind) > communicator.size


_SNAPSHOT = "one answer is a snapshot of a job that may be moving: only a second one with the same counts shows a hang"


def _too_soon(ranks: RasRanks) -> bool:
    """Whether the two answers are so close together that a healthy job may have launched nothing between them."""
    return ranks.seconds is not None and ranks.seconds < SHORTEST_WAIT


def _standing(ranks: RasRanks, behind: tuple[int, ...], others_moved: bool) -> str:
    who = named(behind)
    if others_moved:
        return f"{ranks.interval} {who} launched nothing there, and the others did: it is slow, or has stopped"
    soon = ", which is too short a time to call it a hang" if _too_soon(ranks) else ""
    return f"{ranks.interval} neither they nor {who} launched anything there{soon}"


def _moved_by_rank(ranks: RasRanks, communicator: Communicator) -> dict[int, bool | None]:
    return {
        one: ranks.has_moved(communicator, rank)
        for rank in communicator.counts
        if (one := ranks.rank_of(communicator, rank)) is not None
    }


def _counted(communicator: Communicator, ranks: RasRanks, absence: Absence) -> str:
    """`6649 AllReduce {where}, the others 6650`; of several kinds of calls, all of them together."""
    by_rank = {ranks.rank_of(communicator, rank): counts for rank, counts in communicator.counts.items()}
    mine, others = by_rank[absence.rank], by_rank[absence.waiting[0]]
    differing = [name for name in communicator.operations if mine.get(name, 0) != others.get(name, 0)]
    if len(differing) == 1 and differing[0] != "collective":
        name = differing[0]
        return f"{mine.get(name, 0)} {name} calls {{where}}, the others {others.get(name, 0)}"
    return f"{absence.last} calls {{where}}, the others {absence.call.pending.number}"


def nothing_moves(ranks: RasRanks) -> Iterator[Finding]:
    """All ranks have launched the same, and nothing since the answer before."""
    communicators = ranks.report.communicators
    known = len(ranks.moved) >= ranks.report.size > 0 and not _too_soon(ranks)
    if not known or any(ranks.moved.values()) or any(one.absent for one in communicators) or _differ(communicators):
        return
    count = len(communicators)
    yield _finding(
        f"have launched nothing {ranks.interval}, and all ranks have launched the same",
        tuple(sorted(ranks.moved)),
        POSSIBLE,
        f"the counts of {count} communicator{'' if count == 1 else 's'} are equal on all of their ranks and in both answers: the "
        "devices or the network stand in the last call, or the job pauses (a checkpoint, an evaluation) or has ended",
        Prescription("gather-backend-evidence"),
    )


def _differ(communicators: Iterable[Communicator]) -> bool:
    return any(len({tuple(sorted(c.items())) for c in one.counts.values()}) > 1 for one in communicators)


def ahead(report: RasReport) -> dict[int, str]:
    """Rank -> `waits in a call of communicator 0xae94` of those that have launched what others of it have not."""
    return {
        rank: f"waits in a call of communicator {front.group.name}"
        for rank, front in _progress(RasRanks(report)).fronts.items()
    }


def movement(report: RasReport) -> str:
    """That nothing stands still, in one sentence, where two answers show it of every rank; "" otherwise."""
    ranks = RasRanks(report)
    if not (report.size and len(ranks.moved) >= report.size and all(ranks.moved.values())) or ranks.falling_back:
        return ""
    words = f"nothing stands still: all {report.size} ranks launched calls {ranks.interval}"
    behind = sorted({one for communicator in report.communicators for one in ranks.behind(communicator)})
    if not behind:
        return words
    return (
        f"{words}, also {named(behind)}, which {'was' if len(behind) == 1 else 'were'} behind when RAS was asked last"
    )


def left_open(report: RasReport) -> Iterator[str]:
    """One answer never shows that a job is healthy: RAS does not know what the devices have completed. Hosts that launch on and
    on do show it, as they run only so far ahead."""
    ranks = RasRanks(report)
    count = len(report.communicators)
    what = f"{count} communicator{'' if count == 1 else 's'}"
    if not report.earlier:
        yield (
            f"NCCL's RAS counts what hosts have launched ({what}), not what devices completed; a second answer, some seconds "
            "later, would show what moves"
        )
        yield from _early(ranks)
    elif not movement(report):
        yield from _not_shown(ranks)
    for communicator in report.communicators:
        if communicator.starting:
            yield f"{named(communicator.starting)} of communicator {communicator.name} are still being initialised"


def _early(ranks: RasRanks) -> Iterator[str]:
    """The few that are ahead of most of a communicator."""
    for communicator in ranks.report.communicators:
        behind = ranks.behind(communicator)
        if behind and _are_most(communicator, sorted(behind)):
            ahead = {ranks.rank_of(communicator, rank) for rank in communicator.counts} - behind.keys() - {None}
            yield (
                f"{named(one for one in ahead if one is not None)} {'is' if len(ahead) == 1 else 'are'} ahead of the other "
                f"{len(behind)} ranks in communicator {communicator.name}, as somebody is in each call of a job that runs"
            )


def _not_shown(ranks: RasRanks) -> Iterator[str]:
    """What two answers do not show of ranks that nothing is said against."""
    caught_up = sorted({rank for one in ranks.report.earlier[-1].communicators for rank in ranks.behind(one)})
    if caught_up and not any(ranks.behind(one) for one in ranks.report.communicators):
        is_not = "is" if len(caught_up) == 1 else "are"
        yield f"{named(caught_up)}, which {'was' if len(caught_up) == 1 else 'were'} behind before, {is_not} not behind any more"
    for rank, words in ranks.falling_back.items():
        yield f"rank {rank} {words}: a third answer would show whether it goes on"
    unknown = [rank for rank in range(ranks.report.size) if not ranks.moved.get(rank)]
    if unknown:
        yield f"the answers of NCCL's RAS do not show whether {named(unknown)} launched anything {ranks.interval}"


def _usual(communicator: Communicator) -> Mapping[str, int] | None:
    """What most ranks have launched, None where no majority has launched the same."""
    found = Counter(tuple(sorted(counts.items())) for counts in communicator.counts.values())
    best, count = found.most_common(1)[0] if found else ((), 0)
    return dict(best) if 2 * count > len(communicator.counts) else None


def _has_moved_on(ranks: RasRanks, communicator: Communicator) -> bool:
    """Whether all that are behind in it have launched something there since the answer before: then nobody stands there."""
    behind = ranks.behind(communicator).values()
    return bool(behind) and all(ranks.has_moved(communicator, rank) for rank in behind)


def _progress(ranks: RasRanks) -> DeviceProgress:
    """The counts as the engine takes them: who is ahead in a communicator waits in its last call for those that are behind."""
    groups: dict[int, list[GroupState]] = {}
    for number, communicator in enumerate(ranks.report.communicators):
        if _has_moved_on(ranks, communicator):
            continue
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
