"""Comments that accept a finding: `# distdoctor: ignore[DD301] -- reason`, by code or slug, in any case."""

from __future__ import annotations

from distdoctor.diagnosis.finding import Finding
from distdoctor.diagnosis.source.ignore_comments import accepted_on

MOST_LINES = 12  # of one statement; a comment farther down belongs to something else


def accepted(finding: Finding, lines: list[str], last: int) -> bool:
    """Whether a comment on the lines of the finding's statement, or alone on the line above it, accepts it."""
    first = finding.place.line
    names = {finding.code.lower(), finding.slug.lower()}
    own = lines[first - 1 : min(last, first + MOST_LINES)]
    above = [lines[first - 2]] if first >= 2 and lines[first - 2].lstrip().startswith("#") else []
    return any(not names.isdisjoint(map(str.lower, accepted_on(line))) for line in (*above, *own))
