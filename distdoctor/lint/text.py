"""What lint saw, for people: one line per finding, then why, the fix and where to read more."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from distdoctor.diagnosis.finding import Finding, Severity
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.lint.examine import Seen

WIDTH = 112


def render(seen: Seen, files: int, unread: int, remedies: Mapping[str, Remedy]) -> str:
    """The report as text. `files`: how many were examined; `unread`: how many could not be; `remedies` describe the slugs that
    findings prescribe."""
    lines = [line for finding in seen.findings for line in _block(finding, remedies)]
    return "\n".join([*lines, _summary(seen, files, unread)]) + "\n"


def _block(finding: Finding, remedies: Mapping[str, Remedy]) -> list[str]:
    severity = finding.severity or Severity.NOTE
    place = f"{finding.place.path}:{finding.place.line} {finding.place.function}".rstrip()
    head = f"{finding.code} {severity.word:<7}  {place}  {finding.title} ({finding.confidence})"
    lines = [head, *_row("why", finding.why)]
    if severity == Severity.NOTE:
        return lines
    lines += [f"        {place.site.path}:{place.site.line}  {place.role}" for place in finding.places]
    for cure in finding.prescriptions:
        remedy = remedies.get(cure.slug)
        lines += _row("fix", ": ".join(one for one in (remedy.what.rstrip(".") if remedy else "", cure.change) if one))
    return [*lines, f"  more  distdoctor explain {finding.code}"]


def _row(word: str, text: str) -> list[str]:
    rows = textwrap.wrap(text, WIDTH - 8)
    return [f"  {word if number == 0 else '':<5} {row}" for number, row in enumerate(rows)]


def _summary(seen: Seen, files: int, unread: int) -> str:
    what = f"{files} {'file' if files == 1 else 'files'}"
    counts = [(severity, sum(f.severity == severity for f in seen.findings)) for severity in reversed(Severity)]
    told = ", ".join(f"{n} {s.word}{'s' if n > 1 else ''}" for s, n in counts if n)
    more = f"; {len(seen.suppressed)} suppressed" if seen.suppressed else ""
    more += f"; {unread} not read" if unread else ""
    return f"{told or 'no findings'} in {what}{more}"
