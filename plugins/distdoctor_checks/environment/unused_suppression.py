"""
DD901 unused-suppression: a comment accepts a finding that was not found there, or that no check has.

What it means    A line carries `# distdoctor: ignore[...]`. Either no installed check or lint rule has that code or slug, or the
                 check looked at the whole job and found nothing on that line.
Why it hurts     A misspelt code accepts nothing. One that is no longer needed will hide the same illness when it comes back.
How we know      The comments of the user's files that took part are held against the names of all checks and, where the job ended
                 well and every rank was seen to its end, against what the checks found.
What to do       Correct the name, or remove it from the comment.
When it is fine  An illness that does not show in every run, as one of speed or of memory. Codes that `distdoctor lint` has as
                 well are never called unused here, as the comment may be for lint.
Source           Ruff's unused-noqa (RUF100) and mypy's --warn-unused-ignores ask the same of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.examined import Examined
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.source.ignore_comments import ignore_comments
from distdoctor.recording.recording import Job, Recording, SourceLine
from distdoctor.testing.rank_trace import TraceBuilder


@check("DD901", "unused-suppression", severity=NOTE, live=False, stands_alone=True)
def examine(examined: Examined, sources: Sources) -> Iterator[Finding]:
    for path, text in sorted(sources.texts.items()):
        for number, names in ignore_comments(text):
            line = SourceLine(path, number)
            unknown = [name for name in names if name.lower() not in examined.installed | _of_lint()]
            if unknown:
                why = "no check that is installed has that name, nor has lint: nothing is accepted"
                yield _finding(line, "that no check has", unknown, why)
            idle = [name for name in names if _is_idle(name, line, examined)]
            if idle:
                yield _finding(line, "that was not found there", idle, "the check looked at all ranks to their end")


def _is_idle(name: str, line: SourceLine, examined: Examined) -> bool:
    """Whether a check of that name looked at the whole job, and found nothing on that line."""
    if not examined.whole or name.lower() not in examined.looked or name.lower() in _of_lint():
        return False
    found = (one for one in examined.findings if name.lower() in (one.code.lower(), one.slug.lower()))
    return not any((line.path, line.line) in one.lines for one in found)


def _of_lint() -> frozenset[str]:
    from distdoctor.lint.rules import all_rules

    return frozenset(name.lower() for rule in all_rules() for name in (rule.code, rule.slug))


def _finding(line: SourceLine, which: str, names: list[str], why: str) -> Finding:
    return Finding(
        title=f"a comment accepts {', '.join(names)}, {which}",
        confidence=CERTAIN if which == "that no check has" else LIKELY,
        place=line,
        places=(Place(line, (), "the comment"),),
        evidence={"names": names},
        why=why,
        prescriptions=(Prescription("remove-the-ignore"),),
    )


def _job(comment: str) -> Recording:
    log = TraceBuilder(0, world_size=1)
    source = f"import torch.distributed as dist\ndist.barrier()  # {comment}\n"
    return Recording(Job(argv=("train.py",), world_size=1), {0: log.build()}, sources={"train.py": source})


def sick() -> Recording:
    return _job("distdoctor: ignore[DD3O1] -- the order is fixed on purpose")


def healthy() -> Recording:
    """A code that there is, in a job whose end nobody saw."""
    return _job("distdoctor: ignore[DD101] -- rank 0 goes first")
