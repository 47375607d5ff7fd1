"""The same rules as a flake8 plugin: `flake8 --select DD`. One file at a time, so helpers in other files are not followed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from distdoctor.lint.examine import examine


class Plugin:
    """What flake8 makes for each file. `lines` is the text as flake8 read it, standard input included."""

    name: ClassVar[str] = "distdoctor"
    version: ClassVar[str] = "1"

    def __init__(self, tree: ast.AST, filename: str, lines: list[str]) -> None:
        self.filename, self.lines = filename, lines

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        for finding in examine({self.filename: "".join(self.lines)}).findings:
            yield finding.place.line, 0, f"{finding.code} {finding.title}", type(self)
