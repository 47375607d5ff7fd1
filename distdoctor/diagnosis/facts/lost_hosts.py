"""Hosts that fell silent while the job ran, and what the ranks of the others have done since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.layout import CallFlag, Op
from distdoctor.recording.trace.reader import Rows

AFTERWARDS_NS = (
    2_000_000_000  # a host may have lived for a beat, and a collective for another, after its last sign of life
)
NO_WAIT = int(CallFlag.ASYNC | CallFlag.NATIVE | CallFlag.COALESCED)
NEED_EVERYBODY = frozenset({Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER})
BLOCKING = ("gloo", "mpi")  # backends whose synchronous calls come back when all members have come


@dataclass(frozen=True)
class LostHosts:
    """`lost` hosts and the traces of all ranks. `interrupted`: the job was ended from outside; `failed`: it is over, not well."""

    lost: tuple[LostHost, ...]
    interrupted: bool
    failed: bool
    ranks: tuple[RankTrace, ...]
    has_calls: bool

    streams = frozenset[str]()

    @classmethod
    def of(cls, recording: Recording) -> LostHosts:
        """NotApplicable: the job has one host, or nobody listened to the others."""
        job = recording.job
        if job.hosts < 2 and not job.lost:
            raise NotApplicable("the job is not known to have several hosts")
        has_calls = "collectives" in recording.streams
        failed = not job.running and bool(job.exit_code)
        return cls(job.lost, bool(job.interrupted), failed, tuple(recording.ranks.values()), has_calls)

    def by_host(self, shortest: float) -> list[list[LostHost]]:
        """What the others saw of each host that was silent for so many seconds and more."""
        found: dict[str, list[LostHost]] = {}
        for lost in self.lost:
            if lost.seconds >= shortest:
                found.setdefault(lost.host, []).append(lost)
        return [*found.values()]

    def were_met_since(self, lost: LostHost) -> bool:
        """Whether a collective that waits for ranks of that host has come back well after its last sign of life."""
        return any(_has_met(log, lost) for log in self._here(lost))

    def others_go_on(self, lost: LostHost) -> bool:
        """Whether the ranks of the host that noticed it have done anything since, or nobody can know."""
        return not self.has_calls or any(_last_sign(log) > lost.since_ns + AFTERWARDS_NS for log in self._here(lost))

    def explain(self, elsewhere: Iterable[int]) -> bool:
        """Whether a standstill that needs these ranks of other hosts is no news: one of their hosts is lost or cut off."""
        return not self.interrupted and any(set(lost.ranks) & set(elsewhere) for lost in self.lost)

    def _here(self, lost: LostHost) -> Iterable[RankTrace]:
        """The ranks on whose clock that sign of life was heard."""
        return (log for log in self.ranks if log.rank not in lost.ranks and log.machine == lost.seen_from)


def _has_met(log: RankTrace, lost: LostHost) -> bool:
    """Whether a call that waits for a rank of that host has come back well after its last sign of life."""
    members = {group.name: group for group in log.group_list() if set(group.ranks) & set(lost.ranks)}
    calls = _good_calls(log)
    since = calls[calls["returned_ns"] > lost.since_ns + AFTERWARDS_NS]
    for row in since[-64:]:
        group = members.get(log.text(int(row["group"])))
        waits = not int(row["flags"]) & NO_WAIT and int(row["op"]) in NEED_EVERYBODY
        if group is not None and waits and group.backend in BLOCKING and int(row["entered_ns"]) > lost.since_ns:
            return True
    return False


def _good_calls(log: RankTrace) -> Rows:
    """Those that did not fail: a peer that is gone, too, ends a call."""
    calls: Rows = log.calls[log.calls["flags"] & int(CallFlag.FAILED) == 0]
    return calls


def _last_sign(log: RankTrace) -> int:
    calls = _good_calls(log)
    return max((int(calls[name].max()) for name in ("entered_ns", "returned_ns") if len(calls)), default=0)
