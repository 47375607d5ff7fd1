"""The scripts that lint is judged by: one text file of cases, each a small program with a code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
# A skipped collective and one under a condition are one illness to the source, as are its kept graphs.
ALIKE = {"DD101": "DD112", "DD410": "DD401"}


@dataclass(frozen=True)
class Case:
    """One script. `files`: path -> text, each with the lines that the corpus file starts with."""

    code: str
    origin: str
    what: str
    files: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.code} {self.what}"


def cases(name: str) -> list[Case]:
    """The cases of one corpus file."""
    head, *blocks = re.split(r"^=== ", (FOLDER / name).read_text(), flags=re.M)
    found = []
    for block in blocks:
        title, _, text = block.partition("\n")
        code, origin, what = (part.strip() for part in title.split("|"))
        parts = re.split(r"^--- file: (.*)\n|^--- (.*)\n", text, flags=re.M)
        files = {"train.py": head + parts[0]} if parts[0].strip() else {}
        for number in range(1, len(parts), 3):
            files[parts[number] or parts[number + 1]] = parts[number + 2]
        found.append(Case(code, origin, what, files))
    return found
