"""The report as one page of HTML that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import base64
import importlib.metadata
import itertools
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import NOTE, Finding, Prescription
from distdoctor.recording.rank_set import compress, named
from distdoctor.recording.recording import Recording
from distdoctor.report import json_report, links
from distdoctor.report.began import began
from distdoctor.report.pictures.gallery import pictures
from distdoctor.report.printable import printable
from distdoctor.report.root_cause import after, brought_down, failed, root_cause
from distdoctor.report.table import Table
from distdoctor.report.text import shown
from distdoctor.report.verdict import gap, looked, state, summary, verdict

MOST_PLACES = 40
MOST_ROWS = 200  # of one table in the page; the JSON has all
LARGEST_RAW = 600_000  # bytes of JSON that a page carries
NARROW = 350  # pixels that a picture has on a phone
MOST_LINES = 2  # of source, on either side
_CODE = re.compile(r"`([^`\n]+)`")
_LONGEST = 400  # letters of one environment variable


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["as_code"] = _as_code
    return environment.from_string(resources.files(__package__).joinpath("page.html.jinja").read_text("utf-8"))


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis as a page. Everything that came from the job is escaped."""
    first = diagnosis.findings[0] if diagnosis.findings else None
    mine, others = pictures(diagnosis)
    raw = json_report.render(diagnosis).encode("utf-8", "backslashreplace")
    page = _template().render(
        version=importlib.metadata.version("distdoctor"),
        when=_when(diagnosis.recording),
        heading=f"{first.code} {first.title}" if first else state(diagnosis),
        headline=first.title if first else verdict(diagnosis),
        badge=_badge(diagnosis),
        grade=_grade(diagnosis),
        first=_finding(first, diagnosis) if first else None,
        summary=summary(diagnosis) if first else f"{len(diagnosis.examined)} checks made",
        facts=list(_facts(diagnosis)),
        gap=gap(diagnosis),
        argv=" ".join(map(str, diagnosis.job.argv)),
        verdict_pictures=mine,
        other_pictures=others,
        findings=[_finding(finding, diagnosis) for finding in diagnosis.findings],
        handbook=_handbook(diagnosis),
        suppressed=[finding.code for finding in diagnosis.suppressed],
        environments=_environments(diagnosis.recording),
        looked=looked(diagnosis) if diagnosis.could_not_look else f"{len(diagnosis.examined)} checks made",
        not_examined=_not_examined(diagnosis),
        examined=diagnosis.examined,
        troubles=diagnosis.troubles,
        raw=base64.b64encode(raw).decode("ascii") if len(raw) <= LARGEST_RAW else "",
        raw_size=f"{len(raw) / 1024:.0f} KiB",
        most_rows=MOST_ROWS,
        narrow=NARROW,
        most_views=max((len(one.views) for one in (*mine, *others)), default=0) or 1,
    )
    return printable(page)  # it may go to the standard output of a CI job


def _badge(diagnosis: Diagnosis) -> str:
    if diagnosis.findings:
        return _severity(diagnosis.findings[0])
    if failed(diagnosis.job):
        return "failed"
    return "nothing found" if diagnosis.suppressed or not diagnosis.healthy else "healthy"


def _grade(diagnosis: Diagnosis) -> str:
    """The class that colours the verdict."""
    if diagnosis.findings:
        return _severity(diagnosis.findings[0])
    return "error" if failed(diagnosis.job) else "good" if diagnosis.healthy else "warning"


def _severity(finding: Finding) -> str:
    return (finding.severity or NOTE).word


def _when(recording: Recording | None) -> str:
    at = began(recording)
    return at.strftime("%Y-%m-%d %H:%M UTC") if at is not None else ""


def _facts(diagnosis: Diagnosis) -> Iterator[str]:
    """What is known of the job, in few words each."""
    job, cause, others = diagnosis.job, root_cause(diagnosis), brought_down(diagnosis)
    recording = diagnosis.recording
    logs = list(recording.ranks.values()) if recording is not None else []
    hosts = {log.host for log in logs if log.host}
    yield f"{diagnosis.world_size} rank{'' if diagnosis.world_size == 1 else 's'}" + (
        f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    )
    steps = max((int(log.steps["step"][-1]) for log in logs if len(log.steps)), default=0)
    if steps:
        yield f"{steps} steps"
    if job.launcher:
        yield f"launched by {job.launcher}"
    if diagnosis.ended_by_distdoctor:
        yield "ended by distdoctor because it hung" if diagnosis.hung else "ended by distdoctor"
    elif job.exit_code is not None:
        yield f"exit code {job.exit_code}"
    elif job.running:
        yield "still running when it was read"
    if cause is not None and failed(job) and not diagnosis.ended_by_distdoctor and cause.words != "exit code unknown":
        yield f"root cause: rank {cause.rank}, {cause.words}"
    if others and not diagnosis.ended_by_distdoctor:
        yield f"{named(others)} ended {after(job, others)}"
    versions = logs[0].environment.get("torch") if logs else None
    if isinstance(versions, str):
        yield f"torch {versions}"


def _readable(value: object) -> str:
    """A value of evidence as people write it: no brackets and quotes of Python."""
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_readable(one)}" for name, one in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        ranks = [one for one in value if isinstance(one, int) and not isinstance(one, bool)]
        if len(ranks) == len(value) > 3 and all(one < other for one, other in itertools.pairwise(ranks)):
            return compress(ranks)
        return ", ".join(map(_readable, value))
    return str(value)


def _finding(finding: Finding, diagnosis: Diagnosis) -> dict[str, Any]:
    cures = [_cure(cure, diagnosis) for cure in finding.prescriptions]
    return {
        "code": finding.code,
        "slug": finding.slug,
        "severity": _severity(finding),
        "ranks": "" if finding.title.startswith("rank") or not finding.ranks else finding.ranks_named,
        "place": shown(finding.place) if finding.place else "",
        "source": list(_source(finding, diagnosis)),
        "title": finding.title,
        "confidence": finding.sureness,
        "why": finding.why,
        "places": [
            {"ranks": named(p.ranks) if p.ranks else "", "where": shown(p.site), "role": p.role}
            for p in finding.places[:MOST_PLACES]
        ],
        "prescriptions": cures,
        "fix": _short_fix(finding, cures),
        "evidence": [(name.replace("_", " "), _readable(value)[:2000]) for name, value in finding.evidence.items()],
    }


def _handbook(diagnosis: Diagnosis) -> dict[int, tuple[str, str]]:
    """The page of the handbook and its address, beside the first finding with its code: whoever reads may have no distdoctor."""
    first: dict[str, int] = {}
    for number, finding in enumerate(diagnosis.findings):
        first.setdefault(finding.code, number)
    pages = {code: check.handbook for code in first if (check := diagnosis.checks.get(code)) is not None}
    return {first[code]: (page, links.page_of(code)) for code, page in pages.items() if page}


def _cure(cure: Prescription, diagnosis: Diagnosis) -> dict[str, Any]:
    """In words: the change itself where it is one line, as in the terminal, else what the remedy is; and the lines to change."""
    remedy = diagnosis.remedies.get(cure.slug)
    what, how, usual = (remedy.what, remedy.how, remedy.effect) if remedy else (cure.slug, "", "")
    if cure.patch is None and cure.change and "\n" not in cure.change:
        return {"what": cure.change, "change": [], "effect": cure.effect}
    change = cure.patch.text if cure.patch else cure.change or how
    return {
        "what": what,
        "change": change.rstrip().split("\n") if change else [],
        "effect": cure.effect or usual,
    }


def _as_code(words: str) -> Markup:
    """Text with what stands between backticks as code, everything in it escaped."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(words))))  # noqa: S704 - escaped before


def _short_fix(finding: Finding, cures: list[dict[str, Any]]) -> str:
    """One sentence for the card of the verdict: the edit in words, where it is one line."""
    if not cures:
        return ""
    change = finding.prescriptions[0].change
    return change if change and "\n" not in change else str(cures[0]["what"])


def _source(finding: Finding, diagnosis: Diagnosis) -> Iterator[tuple[str, str, bool]]:
    """The lines around the place: number, text, whether it is the place itself."""
    sources = diagnosis.recording.sources if diagnosis.recording is not None else {}
    lines, line = sources.get(finding.place.path, "").splitlines(), finding.place.line
    if not 0 < line <= len(lines):
        return
    last = min(line + MOST_LINES, len(lines))
    for number in range(max(1, line - MOST_LINES), last + 1):
        yield f"{number:>{len(str(last))}}", lines[number - 1].expandtabs(4)[:300], number == line


def _not_examined(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """The checks that could not look, those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for one in diagnosis.not_examined:
        reasons.setdefault(one.reason, []).append(f"{one.code} {one.slug}")
    return [(", ".join(codes), reason) for reason, codes in reasons.items()]


_OF_EACH_RANK = ("RANK", "pid", "TORCHELASTIC_ERROR_FILE", "text_hash")  # what each rank has for itself


def _environments(recording: Recording | None) -> Table | None:
    """What is not the same on all ranks, of what they noted about themselves; None where nothing differs."""
    logs = recording.ranks if recording is not None else {}
    facts = {rank: dict(_flat(log.environment)) for rank, log in logs.items() if log.environment}
    rows = []
    for name in dict.fromkeys(name for one in facts.values() for name in one):
        values: dict[str, list[int]] = {}
        for rank, one in facts.items():
            values.setdefault(one.get(name, "-"), []).append(rank)
        if 1 < len(values) < max(3, len(facts)) and not name.endswith(_OF_EACH_RANK):
            rows += [(name, named(ranks), value[:_LONGEST]) for value, ranks in values.items()]
    return (
        Table("environments", "what differs between ranks", ("what", "ranks", "value"), tuple(rows)) if rows else None
    )


def _flat(values: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if not isinstance(values, dict):
        yield prefix, str(values)
        return
    for name, value in values.items():
        yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
