"""A rule: a function over the program that yields what it sees, with the page of the handbook in its file's docstring."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from distdoctor.diagnosis.finding import LIKELY, Confidence, Finding, Place, Prescription, Severity
from distdoctor.diagnosis.handbook import page_of
from distdoctor.diagnosis.source.edits import Edit, lines_of
from distdoctor.diagnosis.source.source_file import Scope, lineno
from distdoctor.lint.program import ParsedFiles
from distdoctor.recording.recording import SourceLine


@dataclass(frozen=True, eq=False)
class Sighting:
    """What a rule saw at a node. `also`: more lines that matter, each with its role. `change`: the fix in one line."""

    node: ast.AST
    scope: Scope
    title: str
    why: str = ""
    remedy: str = ""
    change: str = ""
    also: tuple[tuple[ast.AST, Scope, str], ...] = ()
    edits: tuple[Edit, ...] = ()
    confidence: Confidence = LIKELY
    severity: Severity | None = None
    evidence: dict[str, object] = field(default_factory=dict)


See = Callable[[ParsedFiles], Iterator[Sighting]]


@dataclass(frozen=True)
class Rule:
    """One illness as the source shows it. Made by the decorator `rule`; code and slug are the check's of the same name."""

    code: str
    slug: str
    severity: Severity
    see: See
    module: str

    @property
    def handbook(self) -> str:
        """The page of the handbook: the docstring of the rule's file."""
        return page_of(self.module)

    @property
    def headline(self) -> str:
        return self.handbook.partition("\n")[0].partition(": ")[2]

    def finding(self, seen: Sighting) -> Finding:
        """The finding as all reporters know it."""
        return Finding(
            code=self.code,
            slug=self.slug,
            severity=seen.severity or self.severity,
            title=seen.title,
            why=seen.why,
            place=site(seen.node, seen.scope),
            places=tuple(Place(site(node, scope), (), role) for node, scope, role in seen.also),
            confidence=seen.confidence,
            evidence=seen.evidence,
            prescriptions=(Prescription(seen.remedy, change=seen.change, edits=seen.edits),)
            if seen.remedy or seen.change
            else (),
        )


def rule(code: str, slug: str, *, severity: Severity) -> Callable[[See], Rule]:
    """Make a rule of a function that yields sightings."""

    def made(see: See) -> Rule:
        return Rule(code, slug, severity, see, see.__module__)

    return made


def is_among_tests(path: str) -> bool:
    """Whether a file lies in a folder of tests. One called `test` may also hold evaluations."""
    file = PurePath(path)
    folders = set(file.parts[:-1])
    return bool({"tests", "testing"} & folders) or ("test" in folders and file.name.startswith("test_"))


def site(node: ast.AST, scope: Scope) -> SourceLine:
    return SourceLine(scope.file.path, lineno(node), scope.name)


def replace_node(node: ast.expr | ast.stmt, scope: Scope, text: str) -> Edit:
    """The edit that puts `text` in the place of a node."""
    return Edit(
        scope.file.path, node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0, text
    )


def insert_before(statement: ast.stmt, scope: Scope, text: str) -> Edit:
    """The edit that puts a statement on a line of its own before another one."""
    line, column = statement.lineno, statement.col_offset
    decorators = getattr(statement, "decorator_list", [])
    if decorators:
        line = min(one.lineno for one in decorators)
    margin = lines_of(scope.file.text)[line - 1][:column]
    return Edit(scope.file.path, line, 0, line, 0, f"{margin}{text}\n")


def insert_after(statement: ast.stmt, scope: Scope, text: str) -> Edit:
    """The edit that puts a statement on a line of its own after another one."""
    margin = lines_of(scope.file.text)[statement.lineno - 1][: statement.col_offset]
    line = (statement.end_lineno or statement.lineno) + 1
    return Edit(scope.file.path, line, 0, line, 0, f"{margin}{text}\n")
