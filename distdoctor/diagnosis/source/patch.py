"""Concrete edits of the user's source, shown as the lines of a diff. Nothing is written anywhere."""

from __future__ import annotations

import ast

from distdoctor.diagnosis.source.rank_guard import is_about_rank

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
    head, text = lines[guard.lineno - 1], lines[first - 1 : last]
    alone = len(body) == 1 and body is guard.body and not guard.orelse
    rest = _without_the_rank(guard.test) if body is guard.body else ""
    if alone and (rest or first == guard.lineno):
        return _condition_alone(head, guard, rest)
    if first == guard.lineno:
        return ""  # several statements on one line
    indent = len(head) - len(head.lstrip())
    depth = len(text[0]) - len(text[0].lstrip())
    free = [f"{head[:indent]}if {rest}:", *text] if rest else [row[depth - indent :] for row in text]
    if alone:
        rows = [f"-{row}" for row in (*lines[guard.lineno - 1 : first - 1], *text)] + [f"+{row}" for row in free]
    elif statement is body[-1]:
        rows = [f" {head}", *([" ..."] if len(body) > 1 else []), *(f"-{row}" for row in text)]
        rows += [f"+{row}" for row in free]
    else:  # others follow it inside: it has to come first, for everybody
        rows = [*(f"+{row}" for row in free), f" {head}", *(f"-{row}" for row in text), " ..."]
    margin = min(len(row) - 1 - len(row[1:].lstrip()) for row in rows if row != " ...")
    return (
        "\n".join(row[0] + row[1 + margin :] if row != " ..." else row for row in rows)
        if len(rows) <= MOST_LINES
        else ""
    )


def _without_the_rank(test: ast.expr) -> str:
    """What is left of `step == 3 and rank == 0` without the rank; "" where nothing is, or it is no such conjunction."""
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
        return ""
    rest = [part for part in test.values if not is_about_rank(part)]
    return " and ".join(map(ast.unparse, rest)) if len(rest) < len(test.values) else ""


def _condition_alone(head: str, guard: ast.If, rest: str) -> str:
    """The line of the `if`, with what is left of its condition; without a condition the statement on the same line."""
    before, colon, after = (
        head[: guard.test.end_col_offset].strip(),
        ":",
        head[guard.test.end_col_offset :].lstrip(") "),
    )
    if guard.test.end_lineno != guard.lineno or not before.startswith("if") or not after.startswith(colon):
        return ""
    after = after.removeprefix(colon)
    changed = f"if {rest}:{after}" if rest else after.strip()
    return f"-{head.strip()}\n+{changed.rstrip()}"


def replaced(source: str, line: int, old: str, new: str) -> str:
    """One line with `old` replaced by `new`, as a diff; "" when the line does not hold `old`."""
    lines = source.splitlines()
    if not 0 < line <= len(lines) or old not in lines[line - 1]:
        return ""
    return f"-{lines[line - 1]}\n+{lines[line - 1].replace(old, new, 1)}"
