"""Comments that accept a finding: `# distdoctor: ignore[DD301] -- reason`, by code or slug, in any case."""

from __future__ import annotations

import re

from distdoctor.diagnosis.finding import Finding

_COMMENT = re.compile(r"#\s*distdoctor:\s*ignore\[([A-Za-z0-9_,\s-]+)\]", re.I)
MOST_LINES = 12  # of one statement; a comment farther down belongs to something else


def accepted(finding: Finding, lines: list[str], last: int) -> bool:
    """Whether a comment on the lines of the finding's statement, or alone on the line above it, accepts it."""
    first = finding.place.line
    names = {finding.code.lower(), finding.slug.lower()}
    own = lines[first - 1 : min(last, first + MOST_LINES)]
    above = [lines[first - 2]] if first >= 2 and lines[first - 2].lstrip().startswith("#") else []
    return any(names & _named(line) for line in (*above, *own))


def _named(line: str) -> set[str]:
    found = _COMMENT.search(line)
    return {word.strip().lower() for word in found[1].split(",")} if found else set()
