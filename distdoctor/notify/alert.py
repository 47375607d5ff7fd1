"""What is sent of a diagnosis: a title, a few lines of text and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, NOTE, WARNING
from distdoctor.report.printable import one_line, printable
from distdoctor.report.root_cause import failed
from distdoctor.report.text import block_of
from distdoctor.report.verdict import state, summary, verdict

LONGEST_TITLE = 63  # letters; W&B refuses longer ones
MOST_FINDINGS = 50
REPORTS = ("report.html", "report.json")


class FoundEvent(msgspec.Struct, frozen=True):
    """One finding, for those who count events."""

    code: str
    slug: str
    severity: str
    confidence: str
    ranks: list[int]
    title: str
    path: str
    line: int


class Alert(msgspec.Struct, frozen=True):
    """`level`: error, warning or info. `text`: the first line, why and the fix. `name`: of the run."""

    title: str
    text: str
    level: str
    state: str
    summary: str
    name: str
    world_size: int
    findings: list[FoundEvent]


@dataclass(frozen=True)
class Delivery:
    """What a way of sending gets: the alert, the folder that the reports lie in, and where to (a project, experiment, folder or
    address; "" for the library's own default)."""

    alert: Alert
    folder: Path
    where: str = ""

    @property
    def reports(self) -> list[Path]:
        return [self.folder / name for name in REPORTS if (self.folder / name).is_file()]


def alert_of(diagnosis: Diagnosis, name: str) -> Alert:
    """The root cause in a few lines; without findings the verdict."""
    found = diagnosis.findings
    return Alert(
        title=_title(diagnosis),
        text=_text(diagnosis),
        level=_level(diagnosis),
        state=state(diagnosis),
        summary=printable(summary(diagnosis)),
        name=name,
        world_size=diagnosis.world_size,
        findings=[
            FoundEvent(
                code=one.code,
                slug=one.slug,
                severity=(one.severity or NOTE).word,
                confidence=str(one.confidence),
                ranks=list(one.ranks),
                title=one_line(one.title),
                path=one.place.path,
                line=one.place.line,
            )
            for one in found[:MOST_FINDINGS]
        ],
    )


def is_worth_an_alert(diagnosis: Diagnosis) -> bool:
    """There is something to act on: a warning, an error, or a job that failed."""
    return bool(diagnosis.at_least(WARNING)) or failed(diagnosis.job)


def _title(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return f"distdoctor: {state(diagnosis)}"
    first = diagnosis.findings[0]
    ranks = f", {first.ranks_named}" if first.ranks else ""
    title = one_line(f"distdoctor: {first.code} {first.slug}{ranks}")
    return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"


def _text(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return printable(verdict(diagnosis))
    more = [f"in all: {summary(diagnosis)}"] if len(diagnosis.findings) > 1 else []
    return printable("\n".join([*block_of(diagnosis.findings[0], diagnosis), *more]))


def _level(diagnosis: Diagnosis) -> str:
    if diagnosis.at_least(ERROR) or failed(diagnosis.job):
        return "error"
    return "warning" if diagnosis.at_least(WARNING) else "info"
