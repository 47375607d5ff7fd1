"""What lint finds in checkouts of public repositories, beside the judgements of lint_verdicts.md: one row each, then what nobody
has judged yet.

    python benchmarks/lint_table.py FOLDER...        (a folder is named as its repository is in the table)
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distdoctor.cli.lint import read
from distdoctor.diagnosis.finding import NOTE, Finding
from distdoctor.lint.examine import examine

VERDICTS = Path(__file__).with_name("lint_verdicts.md")
_PLACE = re.compile(r"`([^`]+\.py):(\d+)`")


@dataclass
class Judged:
    """The findings of one repository that somebody has looked at: by file, line and code, and how many of a code in all."""

    places: set[tuple[str, int, str]] = field(default_factory=set)
    counted: Counter[str] = field(default_factory=Counter)

    def takes(self, finding: Finding, folder: Path) -> bool:
        """Whether this one is among them; one that is only counted is used up."""
        path = str(Path(finding.place.path).relative_to(folder))
        if any(
            code == finding.code and line == finding.place.line and path.endswith(file)
            for file, line, code in self.places
        ):
            return True
        self.counted[finding.code] -= 1
        return self.counted[finding.code] >= 0


def judged() -> dict[str, Judged]:
    """repository -> its judgements, from the table "Each finding"."""
    text = VERDICTS.read_text("utf-8").partition("## Each finding")[2].partition("\n## ")[0]
    found: dict[str, Judged] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) < 4 or not cells[2].startswith("DD"):
            continue
        one = found.setdefault(cells[0], Judged())
        if place := _PLACE.search(cells[1]):
            one.places.add((place[1], int(place[2]), cells[2]))
        elif count := re.match(r"\d+", cells[1]):
            one.counted[cells[2]] += int(count[0])
    return found


def rows(folders: list[Path]) -> Iterator[tuple[str, list[Finding]]]:
    """(a row of the table, what is not judged) of each checkout."""
    known = judged()
    for folder in folders:
        texts = read([str(folder)]).texts
        seen = examine(texts)
        judgements = known.get(folder.name, Judged())
        new = [finding for finding in seen.findings if not judgements.takes(finding, folder)]
        notes = sum(finding.severity == NOTE for finding in seen.findings)
        lines = sum(text.count("\n") for text in texts.values()) / 1000
        yield (
            f"| {folder.name} | {len(texts)} | {lines:.1f} | {len(seen.findings) - notes} | {notes} | {len(new)} |",
            new,
        )


def main() -> int:
    print("| repository | files | kLOC | errors and warnings | notes | not judged yet |\n|---|---|---|---|---|---|")
    unjudged = []
    for row, new in rows([Path(one) for one in sys.argv[1:]]):
        print(row, flush=True)
        unjudged += new
    for finding in unjudged:
        print(f"{finding.place.path}:{finding.place.line} {finding.code} {finding.title}")
    return int(bool(unjudged))


if __name__ == "__main__":
    sys.exit(main())
