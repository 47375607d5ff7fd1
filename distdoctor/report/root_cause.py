"""Which rank brought the job down, for the formats that name it."""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, Finding
from distdoctor.recording.job_log import LAUNCHER
from distdoctor.recording.recording import Job, RankEnd


@dataclass(frozen=True)
class RootCause:
    """The rank, and how its process ended as far as that was seen."""

    rank: int
    exit_code: int | None
    signal: int = 0
    ended_by_distdoctor: bool = False
    exception: str = ""
    """What it had raised, where that is on record: a signal that meets it on its way out after that is no cause."""

    @property
    def words(self) -> str:
        """`exit code 3`, `SIGKILL`, `ValueError: no such column`."""
        if self.ended_by_distdoctor:
            return "ended by distdoctor"
        if self.signal:
            return signal_name(self.signal)
        if self.exit_code is None:
            return self.exception or "exit code unknown"
        return f"exit code {self.exit_code}"


def root_cause(diagnosis: Diagnosis) -> RootCause | None:
    """The rank that the first error blames, else the rank that failed first; None when the job did not fail.

    The finding comes first: gloo often aborts an innocent rank, so who dies first is no proof. Nor is a signal that gloo sends a
    rank while its interpreter goes down after an exception: then the exception is the cause. Where both sides are named because
    nothing tells which one is wrong, no rank is; and of a job that failed, none for what held up nobody.
    """
    ends = diagnosis.job.ends
    first = [
        finding
        for finding in diagnosis.at_least(ERROR)[:1]
        if finding.ranks and not finding.undecided and not (failed(diagnosis.job) and _went_on_past(diagnosis, finding))
    ]
    blamed = [finding.ranks[0] for finding in first]
    raised = {finding.ranks[0]: str(finding.evidence.get("exception") or "").partition("\n")[0] for finding in first}
    if not (failed(diagnosis.job) or blamed):
        return None
    by_time = sorted((end.at_ns, rank) for rank, end in ends.items() if failed_by_itself(end))
    for rank in [*blamed, *(rank for _, rank in by_time)]:
        end = ends.get(rank)
        if end is None or end.ended_by_launcher:  # how it was ended says nothing about why
            return RootCause(rank, None, ended_by_distdoctor=diagnosis.ended_by_distdoctor)
        exception = raised.get(rank, "")
        return RootCause(rank, end.exit_code, 0 if exception else end.signal, exception=exception)
    return None


def failed(job: Job) -> bool:
    """Whether the job ended otherwise than with exit code 0."""
    return bool(job.exit_code) or any(failed_by_itself(end) for end in job.ends.values())


def failed_by_itself(end: RankEnd) -> bool:
    return not end.ended_by_launcher and bool(end.exit_code or end.signal)


def brought_down(diagnosis: Diagnosis) -> tuple[int, ...]:
    """The ranks that ended only because of the root cause: ended by the launcher, or failed after it."""
    cause = root_cause(diagnosis)
    if cause is None or not failed(diagnosis.job):
        return ()
    # Whoever has a finding of its own ended because of that.
    blamed = {cause.rank, *(rank for finding in diagnosis.at_least(ERROR) for rank in finding.ranks)}
    ends = sorted(diagnosis.job.ends.items())
    return tuple(rank for rank, end in ends if rank not in blamed and (end.ended_by_launcher or failed_by_itself(end)))


def _went_on_past(diagnosis: Diagnosis, finding: Finding) -> bool:
    """Whether it held up nobody, and its rank came to its end all the same: a NaN ends no other rank."""
    end = diagnosis.job.ends.get(finding.ranks[0])
    return finding.area != "hang" and end is not None and not (end.ended_by_launcher or failed_by_itself(end))


def after(job: Job, ranks: Collection[int] = ()) -> str:
    """What the end of these others has to do with the root cause: a log tells the order and no more, and a signal from outside
    ends all ranks that are left, whatever is wrong."""
    ends = [job.ends[rank] for rank in ranks if rank in job.ends]
    if job.interrupted and all(end.ended_by_launcher or end.signal == job.interrupted for end in ends):
        return f"by {signal_name(job.interrupted)} from outside"
    return "after it" if job.launcher == LAUNCHER else "because of it"


def from_outside(number: int) -> str:
    """`the job was ended from outside by SIGTERM (a time limit, preemption, scancel)`."""
    if number == signal.SIGINT:
        return "the job was interrupted (SIGINT)"
    return f"the job was ended from outside by {signal_name(number)} (a time limit, preemption, scancel)"


def signal_name(number: int) -> str:
    """`SIGKILL`; `signal 64` for those without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
