"""The report for people: the root cause first, one block per finding, at most forty lines at any world size."""

from __future__ import annotations

import os.path
import textwrap
from collections.abc import Iterable

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import Finding, Place, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import SourceLine
from distdoctor.report.printable import one_line
from distdoctor.report.root_cause import brought_down, root_cause
from distdoctor.report.verdict import gap, verdict

LINES = 40
WIDTH = 110
MOST_PLACES = 6
MOST_LINES_OF_A_CURE = 10


def render(diagnosis: Diagnosis, *, base: str = "") -> str:
    """The report as text. `base` is the folder that paths are shown relative to."""
    lines: list[str] = []
    then = _then(diagnosis)
    spare = LINES - (5 if gap(diagnosis) else 3)  # for what is left out, ended because of it, and was not seen at all
    for number, finding in enumerate(diagnosis.findings):
        block = block_of(finding, diagnosis, base)
        left = len(diagnosis.findings) - number - 1
        if number and len(lines) + len(block) + left > spare:
            block = block[:1]
        block = block if number else block[:spare]
        if len(lines) + len(block) > spare:
            lines.append(_left_out(diagnosis.findings[number:]))
            break
        lines += block
        if number == 0 and then:
            lines.append(then)
    if not diagnosis.findings:
        lines += _without_findings(diagnosis)
    elif gap(diagnosis):
        lines += _wrapped("seen", gap(diagnosis), most=2)
    if diagnosis.suppressed:
        lines.append(f"suppressed: {_counted(f.code for f in diagnosis.suppressed)}")
    return "\n".join(lines) + "\n"


def block_of(finding: Finding, diagnosis: Diagnosis, base: str = "") -> list[str]:
    """One finding: headline, where the ranks are, why, what to do, where to read more."""
    severity = finding.severity.word if finding.severity else "note"
    head = [finding.code, severity]
    head += [finding.ranks_named] if finding.ranks else []
    head += [shown(finding.place, base)] if finding.place else []
    lines = ["  ".join([*head, f"{finding.title} ({finding.confidence})"])]
    lines[0] = one_line(lines[0].replace("  ", " ", 1))
    lines += _places(finding.places, base)
    lines += _wrapped("why", finding.why or _numbers(finding.evidence), most=5)
    for cure in finding.prescriptions[:2]:
        lines += _cure(cure, diagnosis)
    lines.append(f"  more  distdoctor explain {finding.code}")
    return lines


def shown(site: SourceLine, base: str = "") -> str:
    """`train.py:57 maybe_save`, relative to `base` where the file lies below it."""
    path = site.path
    if base and path.startswith(base.rstrip("/") + "/"):
        path = path[len(base.rstrip("/")) + 1 :]
    elif len(path) > 60:
        path = os.path.join("...", *path.split("/")[-3:])
    return f"{path}:{site.line} {site.function}".rstrip() if path else "unknown line"


def _places(places: tuple[Place, ...], base: str) -> list[str]:
    rows = [
        (named(place.ranks) if place.ranks else "", one_line(shown(place.site, base)), one_line(place.role))
        for place in places
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [f"  {who:<{widths[0]}}  {where:<{widths[1]}}  {role}".rstrip() for who, where, role in rows[:MOST_PLACES]]
    return [*lines, f"  and {len(rows) - MOST_PLACES} more places"] if len(rows) > MOST_PLACES else lines


def _cure(cure: Prescription, diagnosis: Diagnosis) -> list[str]:
    remedy = diagnosis.remedies.get(cure.slug)
    words = cure.change or (remedy.what if remedy else cure.slug)
    lines = words.rstrip().split("\n")
    if len(lines) == 1:
        found = _wrapped("fix", words, most=4)
    else:
        what = remedy.what if remedy else cure.slug
        found = [f"  fix   {what}", *(f"        {line}" for line in lines[:MOST_LINES_OF_A_CURE])]
    effect = cure.effect or ("verified by a second run" if cure.verified else "")
    return [*found, *_wrapped("gain", effect, most=2)]


def _wrapped(word: str, text: str, most: int) -> list[str]:
    if not text:
        return []
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, WIDTH - 8) or [""]]
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1] + " ..."]
    return [f"  {word if number == 0 else '':<5} {line}".rstrip() for number, line in enumerate(lines)]


def _numbers(evidence: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in evidence.items() if isinstance(value, str | int | float))


def _then(diagnosis: Diagnosis) -> str:
    """What merely followed from the root cause, in one line."""
    others = brought_down(diagnosis)
    if not others:
        return ""
    return f"  then  {len(others)} {'rank' if len(others) == 1 else 'ranks'} ended because of it ({named(others)})"


def _without_findings(diagnosis: Diagnosis) -> list[str]:
    then = _then(diagnosis) if root_cause(diagnosis) is not None else ""
    first, *more = verdict(diagnosis).split(": ", 1) if diagnosis.left_open else [verdict(diagnosis)]
    lines = [f"{first}:", *(f"  {words}" for words in diagnosis.left_open)] if more else [first]
    return [*lines, *([then] if then else [])]


def _left_out(findings: Iterable[Finding]) -> str:
    return f"and {_counted(f.code for f in findings)} (all of them: distdoctor report --output-format json)"


def _counted(codes: Iterable[str]) -> str:
    """`DD303 x 2, DD304`."""
    counts: dict[str, int] = {}
    for code in codes:
        counts[code] = counts.get(code, 0) + 1
    return ", ".join(f"{code} x {count}" if count > 1 else code for code, count in counts.items())
