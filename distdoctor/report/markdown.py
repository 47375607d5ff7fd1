"""The report as Markdown: for a pull request, an issue, or the summary of a GitHub Actions job."""

from __future__ import annotations

import re
from collections.abc import Iterable

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import NOTE, Finding
from distdoctor.report import links
from distdoctor.report.printable import one_line
from distdoctor.report.printable import shown as visible
from distdoctor.report.text import block_of, shown
from distdoctor.report.verdict import gap, summary, verdict

MOST_FINDINGS = 50
MOST_DETAILS = 5
_REFERENCE = re.compile(r"([@#])(?=[\w\\])")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@])")


def render(diagnosis: Diagnosis, *, base: str = "") -> str:
    """The verdict, a table of the findings, and the first ones as the terminal shows them; files below the folder `base` by their
    paths in it."""
    found = diagnosis.findings
    lines = [f"## distdoctor: {_plain(summary(diagnosis) if found else verdict(diagnosis))}", ""]
    if found:
        lines += ["| code | severity | ranks | line | finding |", "|---|---|---|---|---|"]
        lines += [_row(finding, base) for finding in found[:MOST_FINDINGS]]
        lines += [f"\nand {len(found) - MOST_FINDINGS} more"] if len(found) > MOST_FINDINGS else []
        lines += [""]
    for finding in found[:MOST_DETAILS]:
        lines += [*_fenced(block_of(finding, diagnosis, base)), ""]
    if gap(diagnosis):
        lines += [f"Not everything was seen: {_plain(gap(diagnosis))}.", ""]
    return "\n".join(lines)


def _row(finding: Finding, base: str) -> str:
    ranks = finding.ranks_named if finding.ranks else ""
    place = shown(finding.place, base) if finding.place else ""
    severity = (finding.severity or NOTE).word
    cells = (severity, ranks, place, f"{finding.title} ({finding.sureness})")
    code, page = _plain(f"{finding.code} {finding.slug}"), links.page_of(finding.code)
    return f"| {' | '.join((f'[{code}]({page})' if page else code, *map(_plain, cells)))} |"


def _plain(words: str) -> str:
    """Text in which nothing is markup, nobody is mentioned and no issue is meant: GitHub looks for `@name` and `#128` after the
    backslashes have gone, but not across a comment."""
    return _REFERENCE.sub(r"\1<!-- -->", _SPECIAL.sub(r"\\\1", one_line(words)))


def _fenced(lines: Iterable[str]) -> list[str]:
    """A block of code, in a fence that is longer than any inside it."""
    body = [visible(line) for line in lines]
    longest = max((len(run) for line in body for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *body, fence]
