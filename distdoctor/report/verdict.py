"""The verdict in one line where no check found anything: healthy only where the whole job was seen."""

from __future__ import annotations

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.report.root_cause import failed, root_cause


def verdict(diagnosis: Diagnosis) -> str:
    """`healthy: 81 checks on 2 ranks`, or why that cannot be said."""
    cause = root_cause(diagnosis)
    if cause is not None:
        return f"the job failed: rank {cause.rank} ended first, with {cause.words}; no check found out why"
    if failed(diagnosis.job):
        return f"the job failed with exit code {diagnosis.job.exit_code}, and no check found out why"
    coverage = diagnosis.coverage
    if coverage is not None and coverage.expected and not coverage.seen:
        return f"nothing was seen: {coverage.sentence}"
    checks = _counted(len(diagnosis.examined), "check")
    if not diagnosis.examined:
        return "nothing was examined: no check could be made on this recording"
    if diagnosis.left_open:
        return f"unknown, no check found a cause and this is not answered: {'; '.join(diagnosis.left_open)}"
    ranks = _counted(diagnosis.world_size, "rank")
    if coverage is None or coverage.complete:
        so_far = ", which still runs" if diagnosis.job.running else ""
        return f"healthy: {checks} on {ranks}{so_far}"
    if not coverage.seen:
        return f"no finding: {checks} on what a log says, which is no proof of health"
    return f"no finding, but not everything was seen: {checks}; {coverage.sentence}"


def state(diagnosis: Diagnosis) -> str:
    """One word for programs: `findings`, `failed`, `healthy`, `incomplete`, `nothing examined`."""
    if diagnosis.findings:
        return "findings"
    if failed(diagnosis.job):
        return "failed"
    if diagnosis.healthy:
        return "healthy"
    return "incomplete" if diagnosis.examined else "nothing examined"


def gap(diagnosis: Diagnosis) -> str:
    """What was not seen of the job, for beside findings; "" where it was seen whole."""
    return diagnosis.coverage.sentence if diagnosis.coverage is not None else ""


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
