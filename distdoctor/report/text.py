"""The report for people: the root cause first, one block per finding, at most forty lines at any world size."""

from __future__ import annotations

import os.path
import re
import textwrap
from collections.abc import Collection, Iterable

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import Finding, Place, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.source_line import numbered
from distdoctor.report.printable import one_line
from distdoctor.report.root_cause import after, brought_down, root_cause
from distdoctor.report.verdict import gap, verdict

LINES = 40
WIDTH = 110
MOST_PLACES = 6
MOST_LINES_OF_A_CURE = 10
MOST_LINES_OF_A_PATCH = 16
_SECONDS = re.compile(r"\b\d[\d.,]* s\b")


def render(diagnosis: Diagnosis, *, base: str = "", width: int = 0, known: Collection[Finding] = ()) -> str:
    """The report as text. `base` is the folder that paths are shown relative to. `width`: columns of the terminal, 0 where the
    headlines are not to be wrapped. Of what reads like a finding in `known`, which has been shown in full, only the headline is
    repeated."""
    lines: list[str] = []
    then = _then(diagnosis, width)
    spare = LINES - (5 if gap(diagnosis) else 3)  # for what is left out, ended because of it, and was not seen at all
    spare -= 2 if diagnosis.tried is not None else 0
    for number, finding in enumerate(diagnosis.findings):
        block = block_of(finding, diagnosis, base, width)
        block = headline(finding, base, width) if any(_reads_alike(finding, one) for one in known) else block
        left = len(diagnosis.findings) - number - 1
        if number and len(lines) + len(block) + left > spare:
            block = headline(finding, base, width)
        block = block if number else block[:spare]
        if len(lines) + len(block) > spare:
            lines.append(_left_out(diagnosis.findings[number:]))
            break
        lines += block
        if number == 0:
            lines += then
    if not diagnosis.findings:
        lines += _without_findings(diagnosis)
    elif gap(diagnosis):
        lines += _wrapped("seen", gap(diagnosis), most=2, width=width)
    if diagnosis.tried is not None:
        lines += _wrapped("tried", f"{diagnosis.tried.outcome}: {diagnosis.tried.words}", most=2, width=width)
    if diagnosis.suppressed:
        lines.append(f"suppressed: {_counted(f.code for f in diagnosis.suppressed)}")
    if diagnosis.withdrawn:
        lines.append(
            f"withdrawn: {_counted(f.code for f, _ in diagnosis.withdrawn)} (taken back by what the ranks did later)"
        )
    return "\n".join(lines) + "\n"


def _reads_alike(finding: Finding, earlier: Finding) -> bool:
    """Whether a reader of the earlier one has read all of this one, but for counts and waits that have grown since."""
    now, then = (_SECONDS.sub("", headline(one)[0]) for one in (finding, earlier))
    if now != then or finding.prescriptions != earlier.prescriptions:
        return False
    lines, before = ({(place.site, place.ranks) for place in one.places} for one in (finding, earlier))
    return lines <= before


def block_of(finding: Finding, diagnosis: Diagnosis, base: str = "", width: int = 0) -> list[str]:
    """One finding: headline, the lines of source, where the ranks are, why, what to do, where to read more."""
    lines = headline(finding, base, width)
    lines += [f"  {line}" for line in snippet(finding, diagnosis, width)]
    lines += _places(finding.places, base, width)
    lines += _wrapped("why", finding.why or _numbers(finding.evidence), most=5, width=width)
    for cure in finding.prescriptions[:2]:
        lines += _cure(cure, diagnosis, width)
    lines.append(f"  more  distdoctor explain {finding.code}")
    return lines


def headline(finding: Finding, base: str = "", width: int = 0) -> list[str]:
    """`DD301 warning  ranks 0-1  train.py:36 main  every epoch ... (certain)`, in one line unless there is a width to keep."""
    severity = finding.severity.word if finding.severity else "note"
    head = [finding.code, severity]
    head += [finding.ranks_named] if finding.ranks else []
    head += [shown(finding.place, base)] if finding.place else []
    line = "  ".join([*head, f"{finding.title} ({finding.sureness})"])
    line = one_line(line.replace("  ", " ", 1))
    if not width or len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def snippet(finding: Finding, diagnosis: Diagnosis, width: int = 0) -> list[str]:
    """The line of source that the finding points at, between the one before and the one after; [] where it is not there."""
    sources = diagnosis.recording.sources if diagnosis.recording is not None else {}
    site = finding.place
    lines = sources.get(site.path, "").splitlines()
    if not 0 < site.line <= len(lines) or not lines[site.line - 1].strip():
        return []
    numbers = [n for n in (site.line - 1, site.line, site.line + 1) if 0 < n <= len(lines) and lines[n - 1].strip()]
    digits = len(str(numbers[-1]))
    most = (width or WIDTH) - digits - 8
    return [
        f"{'>' if number == site.line else ' '} {number:>{digits}} | {one_line(lines[number - 1].rstrip().expandtabs(4))[:most]}"
        for number in numbers
    ]


def shown(site: SourceLine, base: str = "") -> str:
    """`train.py:57 maybe_save`, relative to `base` where the file lies below it."""
    path = site.path
    if base and path.startswith(base.rstrip("/") + "/"):
        path = path[len(base.rstrip("/")) + 1 :]
    elif len(path) > 60:
        path = os.path.join("...", *path.split("/")[-3:])
    return f"{numbered(path, site.line)} {site.function}".rstrip() if path else "unknown line"


def _places(places: tuple[Place, ...], base: str, width: int = 0) -> list[str]:
    rows = [
        (named(place.ranks) if place.ranks else "", one_line(shown(place.site, base)), one_line(place.role))
        for place in places
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [f"  {who:<{widths[0]}}  {where:<{widths[1]}}  {role}".rstrip() for who, where, role in rows[:MOST_PLACES]]
    if width:
        indent = " " * min(6, width // 4)
        lines = [
            part
            for line in lines
            for part in textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [line]
        ]
    left = len(rows) - MOST_PLACES
    return [*lines, f"  and {left} more {'place' if left == 1 else 'places'}"] if left > 0 else lines


def _cure(cure: Prescription, diagnosis: Diagnosis, width: int = 0) -> list[str]:
    remedy = diagnosis.remedies.get(cure.slug)
    words = cure.change or (remedy.what if remedy else cure.slug)
    patch = cure.patch.text.rstrip("\n").split("\n") if cure.patch is not None else []
    if patch and len(patch) <= MOST_LINES_OF_A_PATCH:  # whole or not at all: half a patch is none
        return [*_wrapped("fix", remedy.what if remedy else words, 3, width), *_indented(patch), *_gain(cure, width)]
    lines = words.rstrip().split("\n")
    if len(lines) == 1:
        found = _wrapped("fix", words, most=4, width=width)
    else:
        what = remedy.what if remedy else cure.slug
        found = [*_wrapped("fix", what, 3, width), *_indented(lines[:MOST_LINES_OF_A_CURE])]
    return [*found, *_gain(cure, width)]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"        {line}" for line in lines]


def _gain(cure: Prescription, width: int) -> list[str]:
    effect = cure.effect or ("verified by a second run" if cure.verified else "")
    return _wrapped("gain", effect, most=2, width=width)


def _wrapped(word: str, text: str, most: int, width: int = 0) -> list[str]:
    if not text:
        return []
    room = (min(width, WIDTH) if width else WIDTH) - 8
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, room, break_on_hyphens=False) or [""]]
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1] + " ..."]
    return [f"  {word if number == 0 else '':<5} {line}".rstrip() for number, line in enumerate(lines)]


def _numbers(evidence: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in evidence.items() if isinstance(value, str | int | float))


def _then(diagnosis: Diagnosis, width: int = 0) -> list[str]:
    """What merely followed from the root cause, in one line."""
    others = brought_down(diagnosis)
    if not others:
        return []
    count = f"{len(others)} {'rank' if len(others) == 1 else 'ranks'}"
    words = f"{count} ended {after(diagnosis.job, others)} ({named(others)})"
    if diagnosis.ended_by_distdoctor:
        words = f"distdoctor ended the job, {count} that waited with it ({named(others)})"
    return _wrapped("then", words, most=2, width=width) if width else [f"  then  {words}"]


def _without_findings(diagnosis: Diagnosis) -> list[str]:
    then = _then(diagnosis) if root_cause(diagnosis) is not None else []
    first, *more = verdict(diagnosis).split(": ", 1) if diagnosis.left_open else [verdict(diagnosis)]
    lines = [f"{first}:", *(f"  {words}" for words in diagnosis.left_open)] if more else [first]
    return [*lines, *then]


def _left_out(findings: Iterable[Finding]) -> str:
    return f"and {_counted(f.code for f in findings)} (all of them: distdoctor report --output-format json)"


def _counted(codes: Iterable[str]) -> str:
    """`DD303 x 2, DD304`."""
    counts: dict[str, int] = {}
    for code in codes:
        counts[code] = counts.get(code, 0) + 1
    return ", ".join(f"{code} x {count}" if count > 1 else code for code, count in counts.items())
