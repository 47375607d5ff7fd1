"""Conditions under which a rank leaves a loop that the others may still be in: `if loss < best: break`.

Pure `ast`, like `rank_guard`. What only counts (`step == last`) holds on all ranks alike and is left out, and so is what does not
look like a decision of one rank: a comparison by size, a question about the rank, a number that is not finite.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.diagnosis.source.source_file import FunctionNode, Loop, SourceFile, last_word, source_file
from distdoctor.recording.recording import SourceLine

Leaving = tuple[type[ast.stmt], ...]
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_COUNTS = re.compile(r"step|iter|epoch|idx|index|count|^[ijkn]$")
_FINITE = frozenset({"isnan", "isinf", "isfinite"})
_LEAVING_CALLS = frozenset({"sys.exit", "exit", "quit", "os._exit"})
_FAILING = re.compile(r"^(?:sys\.|os\.)?(?:_?exit|quit)\((?:[1-9]|[\"'])")
_UNTRACEABLE = frozenset({"forward", "__call__", "__init__"})  # called by way of torch or Python, not by their names
_DEPTH = 3  # functions between the loop and the call


@dataclass(frozen=True)
class LoopExit:
    """One condition that ends a loop early, or a turn of it (`skips`): its line, and its test as it stands in the source."""

    site: SourceLine
    test: str
    skips: bool = False

    @property
    def words(self) -> str:
        """`if loss < best:` (train.py:41)."""
        return f"`if {self.test}:` ({self.site.short})"

    @property
    def effect(self) -> str:
        """What it lets a rank do, as part of an explanation."""
        what = "skip an iteration" if self.skips else "leave the loop"
        return f"{self.words} lets a rank {what} while the others are in it"

    @property
    def cure(self) -> str:
        what = "skip the iteration" if self.skips else "leave the loop"
        return f"decide once for all ranks: all_reduce or broadcast what {self.words} tests, and {what} on all ranks together"


def fails(statement: str) -> bool:
    """Whether a statement ends the process with another code than 0."""
    return bool(_FAILING.match(statement))


def exits_around(sources: Mapping[str, str], site: SourceLine) -> tuple[LoopExit, ...]:
    """How the loops around a line end a turn or end early, the innermost first, up to the function that the line stands in."""
    file = source_file(sources, site.path)
    found: list[LoopExit] = []
    for node in reversed(file.path_to(site.line) if file is not None else []):
        if isinstance(node, FunctionNode | ast.ClassDef):
            break
        if isinstance(node, Loop):
            found += _exits(node, site, (ast.Break, ast.Continue))
    return tuple(found)


def left_by(sources: Mapping[str, str], inside: SourceLine, after: SourceLine | None = None) -> LoopExit | None:
    """The one condition by which a rank can have left a loop in which the others go on to `inside`.

    None when none or several fit. The loop holds the line `inside`, or a call that leads there by functions of the same file.
    `after` is where the rank went on, in the function of the loop and behind it; without it the rank has ended, and `return`,
    `sys.exit()` and turns that were skipped count as well.
    """
    leaving: Leaving = (ast.Break,) if after is not None else (ast.Break, ast.Continue, ast.Return, ast.Expr)
    wanted = sources if after is None else {after.path: sources.get(after.path, "")}
    found = [
        one
        for file, loop, site, _ in _loops_around(wanted, inside)
        if after is None or _is_behind(file, loop, after)
        for one in _exits(loop, after or site, leaving)
    ]
    return found[0] if len(found) == 1 else None


def skipped_by(sources: Mapping[str, str], inside: SourceLine) -> LoopExit | None:
    """The one condition by which a rank can have skipped the rest of a turn of a loop, and with it `inside`; None as above."""
    found = [
        one
        for _, loop, site, last in _loops_around(sources, inside)
        for one in _exits(loop, site, (ast.Continue,))
        if one.site.line < last
    ]
    return found[0] if len(found) == 1 else None


def _loops_around(sources: Mapping[str, str], inside: SourceLine) -> Iterator[tuple[SourceFile, Loop, SourceLine, int]]:
    """The loops that lead to a line: file, loop, the file as a place, and the last line in the loop that leads there."""
    for path in sources:
        file = source_file(sources, path)
        if file is None:
            continue
        names = _names_that_lead_to(file, inside)
        for loop in file.nodes(ast.For, ast.AsyncFor, ast.While):
            lines = [node.lineno for node in ast.walk(loop) if isinstance(node, ast.Call) and _called(node) in names]
            if path == inside.path and loop.lineno <= inside.line <= (loop.end_lineno or 0):
                lines.append(inside.line)
            if lines:
                yield file, loop, SourceLine(path, 0, inside.function), max(lines)


def _is_behind(file: SourceFile, loop: Loop, line: SourceLine) -> bool:
    """Whether a line comes after a loop, in the same function."""
    return (loop.end_lineno or 0) < line.line and file.function_at(loop.lineno) is file.function_at(line.line)


def _exits(loop: Loop, site: SourceLine, leaving: Leaving) -> Iterator[LoopExit]:
    for condition in _conditions(loop.body, leaving):
        if _may_differ(condition.test):
            skips = isinstance(condition.body[-1], ast.Continue)
            yield LoopExit(SourceLine(site.path, condition.lineno, site.function), ast.unparse(condition.test), skips)


def _may_differ(test: ast.expr) -> bool:
    """Whether it looks as if ranks answered each for itself."""
    if is_about_rank(test) or any(_called(node) in _FINITE for node in ast.walk(test)):
        return True
    compares = any(isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDER) for node in ast.walk(test))
    return compares and not any(_COUNTS.search(name) for name in _values_in(test))


def _values_in(test: ast.expr) -> Iterator[str]:
    """The names of values in an expression, not those of functions that are called."""
    called = {id(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)}
    for node in ast.walk(test):
        if id(node) not in called and isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def _conditions(block: Iterable[ast.AST], leaving: Leaving) -> Iterator[ast.If]:
    """The `if`s of a loop's own body that end it, not those of loops and functions inside it."""
    for node in block:
        if isinstance(node, Loop | FunctionNode | ast.ClassDef):
            continue
        if isinstance(node, ast.If):
            last = node.body[-1]
            if isinstance(last, leaving) and (not isinstance(last, ast.Expr) or _ends_the_process(last)):
                yield node
        yield from _conditions(ast.iter_child_nodes(node), leaving)


def _ends_the_process(statement: ast.Expr) -> bool:
    """Whether it ends the process in order: one that ends with another code than 0 has failed, and that is told as such."""
    leaves = isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func) in _LEAVING_CALLS
    return leaves and not fails(ast.unparse(statement))


def _names_that_lead_to(file: SourceFile, inside: SourceLine) -> frozenset[str]:
    """The function of a line, and those of this file that call it, directly or through one another."""
    names = {inside.function} - {"<module>", ""} - _UNTRACEABLE
    for _ in range(_DEPTH if names else 0):
        for function in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
            if function.name not in _UNTRACEABLE and any(_called(node) in names for node in ast.walk(function)):
                names.add(function.name)
    return frozenset(names)


def _called(node: ast.AST) -> str:
    """The last part of the name that is called: `average` of `self.trainer.average(loss)`."""
    return last_word(node.func) if isinstance(node, ast.Call) else ""
