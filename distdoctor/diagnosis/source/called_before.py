"""A helper that communicates, called under a condition on the rank: called before it instead, by every rank."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from distdoctor.diagnosis.source.edits import Edit, lines_of, rows_replaced, words_replaced
from distdoctor.diagnosis.source.out_of_condition import every_rank_gets_there, out_of_condition, shared_rest
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.recording import SourceLine

# What evaluates all of its parts: `a and f(x)`, `f(x) if a else b` and a comprehension may not call at all, or often.
_EAGER = (
    ast.Expr
    | ast.Assign
    | ast.Call
    | ast.keyword
    | ast.JoinedStr
    | ast.FormattedValue
    | ast.BinOp
    | ast.Tuple
    | ast.List
)


def called_before(sources: Mapping[str, str], site: SourceLine, guard_line: int) -> tuple[Edit, ...]:
    """The edits by which every rank makes the one call, under the `if` at `guard_line`, of the function that `site` stands in.

    A call that is a statement by itself is moved; of a larger expression the call is made before and its value used inside.
    """
    file = source_file(sources, site.path)
    guard = next((n for n in file.nodes(ast.If) if n.lineno == guard_line), None) if file is not None else None
    if file is None or guard is None or not site.function:
        return ()
    found = [
        (statement, call)
        for statement in guard.body
        for call in ast.walk(statement)
        if isinstance(call, ast.Call) and last_word(call.func) == site.function
    ]
    if len(found) != 1:
        return ()
    statement, call = found[0]
    if isinstance(statement, ast.Expr | ast.Assign) and statement.value is call:
        return out_of_condition(sources, replace(site, line=statement.lineno), guard_line)
    rest = shared_rest(guard)
    if (
        statement is not guard.body[0]
        or rest is None
        or not _is_evaluated(statement, call)
        or not _is_plain(guard, file.text)
    ):
        return ()
    there = every_rank_gets_there(sources, replace(site, line=statement.lineno), guard)
    return _edits(site.path, file.text, guard, statement, call, rest) if there else ()


def _is_evaluated(node: ast.AST, call: ast.Call) -> bool:
    """Whether the call is made whenever the node is evaluated."""
    if node is call:
        return True
    return isinstance(node, _EAGER) and any(_is_evaluated(child, call) for child in ast.iter_child_nodes(node))


def _is_plain(guard: ast.If, text: str) -> bool:
    """Whether the condition has its line alone, and is no `elif`."""
    head = lines_of(text)[guard.lineno - 1].strip()
    return head.startswith("if ") and head.endswith(":") and guard.test.end_lineno == guard.lineno


def _edits(path: str, text: str, guard: ast.If, statement: ast.stmt, call: ast.Call, rest: str) -> tuple[Edit, ...]:
    name, written = f"{last_word(call.func)}_result", ast.unparse(call)
    inside = words_replaced(path, text, statement.lineno, written, name)
    if name in text or not inside or any(isinstance(one, ast.NamedExpr) for one in ast.walk(guard.test)):
        return ()
    head = lines_of(text)[guard.lineno - 1]
    margin = head[: len(head) - len(head.lstrip())]
    rows = [f"{margin}if {rest}:", f"{margin}    {name} = {written}"] if rest else [f"{margin}{name} = {written}"]
    return (rows_replaced(path, guard.lineno, guard.lineno - 1, rows), *inside)
