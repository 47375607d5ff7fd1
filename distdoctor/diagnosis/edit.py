"""Concrete edits of the user's source, shown as the lines of a diff. Nothing is written anywhere."""

from __future__ import annotations

import ast

MOST_LINES = 9


def out_of_condition(source: str, line: int, guard_line: int) -> str:
    """The statement at `line` taken out of the `if` at `guard_line`, so that every rank reaches it; "" if that is not simple."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    guard = next((n for n in ast.walk(tree) if isinstance(n, ast.If) and n.lineno == guard_line), None)
    if guard is None:
        return ""
    for body in (guard.body, guard.orelse):
        for statement in body:
            if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
                return _moved(source.splitlines(), guard, body, statement)
    return ""


def _moved(lines: list[str], guard: ast.If, body: list[ast.stmt], statement: ast.stmt) -> str:
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try) or last - first > 3:
        return ""
    indent = len(lines[guard.lineno - 1]) - len(lines[guard.lineno - 1].lstrip())
    depth = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    text = lines[first - 1 : last]
    free = [row[depth - indent :] for row in text]
    alone = len(body) == 1 and body is guard.body and not guard.orelse
    if alone:
        rows = [f"-{row}" for row in (*lines[guard.lineno - 1 : first - 1], *text)] + [f"+{row}" for row in free]
    elif statement is body[-1]:
        rows = [f" {lines[guard.lineno - 1]}", *([" ..."] if len(body) > 1 else []), *(f"-{row}" for row in text)]
        rows += [f"+{row}" for row in free]
    else:  # others follow it inside: it has to come first, for everybody
        rows = [*(f"+{row}" for row in free), f" {lines[guard.lineno - 1]}", *(f"-{row}" for row in text), " ..."]
    margin = min(len(row) - 1 - len(row[1:].lstrip()) for row in rows if row != " ...")
    return (
        "\n".join(row[0] + row[1 + margin :] if row != " ..." else row for row in rows)
        if len(rows) <= MOST_LINES
        else ""
    )


def replaced(source: str, line: int, old: str, new: str) -> str:
    """One line with `old` replaced by `new`, as a diff; "" when the line does not hold `old`."""
    lines = source.splitlines()
    if not 0 < line <= len(lines) or old not in lines[line - 1]:
        return ""
    return f"-{lines[line - 1]}\n+{lines[line - 1].replace(old, new, 1)}"
