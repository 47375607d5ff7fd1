"""The verdict in one line where no check found anything: healthy only where the whole job was seen."""

from __future__ import annotations

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, NOTE, WARNING, Finding
from distdoctor.diagnosis.hang.in_ras import movement
from distdoctor.recording.job_log import LAUNCHER as JOB_LOG
from distdoctor.recording.recording import Recording
from distdoctor.report.root_cause import failed, from_outside, root_cause


def verdict(diagnosis: Diagnosis) -> str:
    """`healthy: 81 checks on 2 ranks`, or why that cannot be said. What somebody accepted was found all the same."""
    if failure := unexplained(diagnosis):
        return failure
    coverage = diagnosis.coverage
    if coverage is not None and coverage.expected and not coverage.seen:
        return f"nothing was seen: {coverage.sentence}"
    checks = _counted(len(diagnosis.examined), "check")
    if not diagnosis.examined:
        return "nothing was examined: no check could be made on this recording"
    if diagnosis.left_open:
        recorded = diagnosis.recording is not None and diagnosis.recording.ranks and not diagnosis.recording.backend
        found = "nothing found," if recorded else "unknown, no check found a cause"
        return f"{found} and this is not answered: {'; '.join(diagnosis.left_open)}"
    if diagnosis.recording is not None and diagnosis.recording.ras is not None and not diagnosis.recording.ranks:
        return movement(diagnosis.recording.ras)
    if diagnosis.could_not_look and (coverage is None or coverage.complete):
        return f"nothing found; {looked(diagnosis)}"
    ranks = _counted(diagnosis.world_size, "rank")
    if coverage is None or coverage.complete:
        so_far = ", which still runs" if diagnosis.job.running else ""
        word = "nothing found but what is accepted" if diagnosis.suppressed else "healthy"
        return f"{word}: {checks} on {ranks}{so_far}"
    if not coverage.seen:
        ended = f"{from_outside(diagnosis.job.interrupted)}; " if diagnosis.job.interrupted else ""
        return f"{ended}no finding: {checks} on what a log says, which is no proof of health"
    return f"no finding, but not everything was seen: {checks}; {coverage.sentence}"


def unexplained(diagnosis: Diagnosis) -> str:
    """How the job failed, where no error that was found says why; "" for one that ended well or is explained."""
    if diagnosis.at_least(ERROR):
        return ""
    cause = root_cause(diagnosis)
    why = "what was found is accepted" if diagnosis.suppressed else "no check found out why"
    if cause is not None:
        return f"the job failed: rank {cause.rank} ended first, with {cause.words}; {why}"
    if not failed(diagnosis.job):
        return ""
    nobody = diagnosis.recording is not None and _saw_nobody(diagnosis.recording)
    if diagnosis.job.interrupted:
        until_then = "no rank was recorded" if nobody else "no check found anything until then"
        return f"{from_outside(diagnosis.job.interrupted)}; {until_then}"
    if nobody:
        why = "no rank was recorded that could tell why"
    return f"the job failed with exit code {diagnosis.job.exit_code}, and {why}"


def _saw_nobody(recording: Recording) -> bool:
    """Whether a launched job, no log of one, left nothing that a check could look at."""
    seen = (
        recording.ranks or recording.stacks or recording.clues or recording.backend or recording.ras or recording.unread
    )
    return not seen and recording.job.launcher != JOB_LOG


def sentence(finding: Finding) -> str:
    """A finding with its ranks as the subject: `rank 1 skipped all_reduce #128`."""
    ranks = "" if finding.title.startswith("rank") or not finding.ranks else f"{finding.ranks_named} "
    return f"{ranks}{finding.title}"


def state(diagnosis: Diagnosis) -> str:
    """One word for programs: `findings`, `failed`, `healthy`, `incomplete`, `nothing examined`."""
    if diagnosis.findings:
        return "findings"
    if failed(diagnosis.job):
        return "failed"
    if diagnosis.healthy:
        return "healthy"
    return "incomplete" if diagnosis.examined else "nothing examined"


def looked(diagnosis: Diagnosis) -> str:
    """`76 of 92 checks could look; not recorded: gradients (16)`: how many, and what kept the others from it."""
    reasons: dict[str, int] = {}
    for one in diagnosis.could_not_look:
        reasons[one.reason] = reasons.get(one.reason, 0) + 1
    most = sorted(reasons.items(), key=lambda one: -one[1])
    words = [f"{reason} ({count})" if count > 1 else reason for reason, count in most[:3]]
    more = [f"and {len(most) - 3} more reasons"] if len(most) > 3 else []
    made = len(diagnosis.examined)
    all_of_them = f"{made} of {made + len(diagnosis.could_not_look)} checks could look"
    return "; ".join([all_of_them, *words, *more])


def summary(diagnosis: Diagnosis) -> str:
    """The last line: how many findings there are, by severity and code; without any the verdict in few words."""
    if diagnosis.findings:
        counts = []
        for severity in (ERROR, WARNING, NOTE):
            codes = [one.code for one in diagnosis.findings if (one.severity or NOTE) == severity]
            if codes:
                named = ", ".join(dict.fromkeys(codes))
                counts.append(f"{_counted(len(codes), severity.word)} ({named})")
        failure = "" if diagnosis.job.interrupted else unexplained(diagnosis)
        found = "; ".join(part for part in (failure, ", ".join(counts)) if part)
    else:
        healthy = diagnosis.healthy and not failed(diagnosis.job)
        found = verdict(diagnosis) if not healthy else "nothing else found" if diagnosis.suppressed else "healthy"
    return f"{found}; {len(diagnosis.suppressed)} suppressed" if diagnosis.suppressed else found


def gap(diagnosis: Diagnosis) -> str:
    """What was not seen of the job, for beside findings; "" where it was seen whole."""
    return diagnosis.coverage.sentence if diagnosis.coverage is not None else ""


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
