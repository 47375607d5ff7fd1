"""Edits of one call or one loop in the user's source: another keyword, another value, something around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.edits import Edit, lines_of, rows_replaced
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.recording import SourceLine


def calls_at(sources: Mapping[str, str], site: SourceLine, *names: str) -> list[ast.Call]:
    """The calls that a line belongs to, of functions of these names where there are any, the innermost last."""
    file = source_file(sources, site.path)
    found = file.nodes(ast.Call) if file is not None else ()
    return [one for one in found if (not names or last_word(one.func) in names) and _holds(one, site.line)]


def only_call(sources: Mapping[str, str], site: SourceLine, *names: str) -> ast.Call | None:
    """The one call of such a name at a line; None where there are several, or none."""
    found = calls_at(sources, site, *names)
    return found[0] if len(found) == 1 else None


def keyword_of(call: ast.Call, name: str) -> ast.keyword | None:
    return next((one for one in call.keywords if one.arg == name), None)


def keyword_set(path: str, call: ast.Call, name: str, value: str, instead_of: str = "") -> tuple[Edit, ...]:
    """The edit that gives a call `name=value`, in the place of the keyword `instead_of` (or of its own) where the call has it."""
    there = keyword_of(call, instead_of or name)
    if there is not None:
        return (node_replaced(path, there, f"{name}={value}"),)
    if any(one.arg is None for one in call.keywords) or any(isinstance(one, ast.Starred) for one in call.args):
        return ()  # it may be given already
    given = [*call.args, *(one.value for one in call.keywords)]
    if len(given) == 1 and isinstance(given[0], ast.GeneratorExp):
        return ()
    last = max(given, key=lambda one: (one.end_lineno or 0, one.end_col_offset or 0), default=None)
    if last is None:
        line, column, text = call.end_lineno or 0, (call.end_col_offset or 0) - 1, f"{name}={value}"
    else:
        line, column, text = last.end_lineno or 0, last.end_col_offset or 0, f", {name}={value}"
    return (Edit(path, line, column, line, column, text),)


def node_replaced(path: str, node: ast.expr | ast.stmt | ast.keyword, text: str) -> Edit:
    """The edit that puts `text` in the place of a node."""
    return Edit(path, node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0, text)


def loop_within(sources: Mapping[str, str], site: SourceLine, header: str) -> tuple[Edit, ...]:
    """The edit that puts the loop which begins at a line under a header (`with ...:`); () where there is no such loop."""
    file = source_file(sources, site.path)
    loops = [n for n in file.nodes(ast.For, ast.While) if n.lineno == site.line] if file is not None else []
    if file is None or len(loops) != 1 or any(_over_lines(node) for node in ast.walk(loops[0])):
        return ()
    lines = [line.rstrip("\r\n") for line in lines_of(file.text)]
    first, last = site.line, loops[0].end_lineno or site.line
    margin = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
    rows = [f"    {row}" if row.strip() else row for row in lines[first - 1 : last]]
    return (rows_replaced(site.path, first, last, [margin + header, *rows]),)


def _over_lines(node: ast.AST) -> bool:
    """A text of several lines would change with its indent."""
    is_text = isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
    return is_text and getattr(node, "lineno", 0) != getattr(node, "end_lineno", 0)


def function_of(sources: Mapping[str, str], site: SourceLine) -> ast.AST | None:
    """The innermost function that a line stands in, else the module; None where the source is not there."""
    file = source_file(sources, site.path)
    return file.function_at(site.line) if file is not None else None


def methods_called(scope: ast.AST, name: str) -> Iterator[tuple[ast.Call, str]]:
    """(call, receiver as written) of each `receiver.name(...)` below a node."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node, ast.unparse(node.func.value)


def method_around(sources: Mapping[str, str], site: SourceLine, name: str) -> SourceLine:
    """The one line in the function around a line that calls a method of this name; no line where there are several, or none."""
    around = function_of(sources, site)
    calls = [*methods_called(around, name)] if around is not None else []
    return SourceLine(site.path, calls[0][0].lineno, site.function) if len(calls) == 1 else SourceLine()


def only_method_called(sources: Mapping[str, str], name: str) -> SourceLine:
    """The one line of all sources that calls a method of this name; no line where there are several, or none."""
    files = [file for path in sources if (file := source_file(sources, path)) is not None]
    found = [(file, call) for file in files for call, _ in methods_called(file.tree, name)]
    if len(found) != 1:
        return SourceLine()
    file, call = found[0]
    return SourceLine(file.path, call.lineno, getattr(file.function_at(call.lineno), "name", "<module>"))


def _holds(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
