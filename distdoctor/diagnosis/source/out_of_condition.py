"""A call taken out of the condition that keeps some ranks from it, so that every rank issues it at the same place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from distdoctor.diagnosis.source.edits import Edit, lines_of, rows_replaced
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, guards_at, is_about_rank, of_test
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.recording import SourceLine

_COMPOUND = ast.If | ast.For | ast.While | ast.With | ast.Try | ast.FunctionDef | ast.ClassDef
_LEAVING = ast.Continue | ast.Break | ast.Return | ast.Raise
_MOST_ROWS = 4
_SOME_RANKS = 8
# Names of what every rank counts alike.
_COUNTED = re.compile(
    r"(?:^|_)(?:step|epoch|iter|iteration|batch_idx|batch_index|every|interval|freq|total|args|cfg|config|i|it|last)s?$|^[A-Z_0-9]+$"
)
# What only one rank may give: the list on the destination of a gather, on the source of a scatter. (its place, its name)
_OF_ONE_RANK = {
    "gather": (1, "gather_list"),
    "gather_object": (1, "object_gather_list"),
    "scatter": (1, "scatter_list"),
    "scatter_object_list": (1, "scatter_object_input_list"),
}


def out_of_condition(sources: Mapping[str, str], site: SourceLine, guard_line: int) -> tuple[Edit, ...]:
    """The edits that take the statement at `site` out of the `if` at `guard_line`; () where others may not run it as it stands.

    The rest of the body keeps its condition: what stood before the statement runs before it, what stood after it after it.
    """
    file = source_file(sources, site.path)
    guard = next((n for n in file.nodes(ast.If) if n.lineno == guard_line), None) if file is not None else None
    if file is None or guard is None or any(isinstance(one, ast.NamedExpr) for one in ast.walk(guard.test)):
        return ()
    found = _held(guard, site.line)
    if found is None or not every_rank_gets_there(sources, site, guard):
        return ()
    body, statement = found
    if not any(isinstance(one, ast.Call) for one in ast.walk(statement)):
        return ()  # a property of a library's communicates: what for, and whether it would on every rank, nobody can see here
    own = _given_by_one(statement)
    if own and (
        body is not guard.body or not _may_be_chosen(own, guard) or not _asks_for_the_one(guard.test, statement)
    ):
        return ()
    if not _runs_anywhere(file.tree, guard, body, statement, own):
        return ()
    rest = shared_rest(guard) if body is guard.body else ""
    if rest is None:
        return ()
    return _Move(lines_of(file.text), guard, body, statement, rest, own).edits(site.path)


def _held(guard: ast.If, line: int) -> tuple[list[ast.stmt], ast.stmt] | None:
    for body in (guard.body, guard.orelse):
        for statement in body:
            if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
                return body, statement
    return None


def every_rank_gets_there(sources: Mapping[str, str], site: SourceLine, guard: ast.If) -> bool:
    """Whether no other condition on the rank keeps ranks from this line."""
    others = [one for one in guards_at(sources, site) if (one.line, one.how) != (guard.lineno, ENCLOSES)]
    return not any(one.on_rank for one in others)


def _given_by_one(statement: ast.stmt) -> tuple[ast.expr, ...]:
    """The list that only one rank gives to a gather or scatter in the statement; () where it holds none."""
    calls = [one for one in ast.walk(statement) if isinstance(one, ast.Call) and last_word(one.func) in _OF_ONE_RANK]
    found = []
    for call in calls:
        place, name = _OF_ONE_RANK[last_word(call.func)]
        named = [one.value for one in call.keywords if one.arg == name]
        found += named or call.args[place : place + 1]
    return tuple(found)


def _may_be_chosen(own: tuple[ast.expr, ...], guard: ast.If) -> bool:
    """Whether ` if rank == 0 else None` can stand behind each of these as it is written."""
    plain = ast.Name | ast.Attribute | ast.Subscript | ast.List | ast.ListComp | ast.Call
    return all(isinstance(one, plain) and guard.lineno < one.lineno == one.end_lineno for one in own)


def _asks_for_the_one(test: ast.expr, statement: ast.stmt) -> bool:
    """Whether a condition lets in exactly the rank that the call names as its destination or source, and may be asked again."""
    call = next(one for one in ast.walk(statement) if isinstance(one, ast.Call) and last_word(one.func) in _OF_ONE_RANK)
    roots = [one.value for one in call.keywords if one.arg in ("dst", "src")] or call.args[2:3]
    root = roots[0].value if roots and isinstance(roots[0], ast.Constant) else None if roots else 0
    guard = of_test(test)
    admitted = [rank for rank in range(_SOME_RANKS) if guard.lets_through(rank) is True]
    return admitted == [root] and not any(guard.lets_through(rank) is None for rank in range(_SOME_RANKS))


def _runs_anywhere(
    tree: ast.Module, guard: ast.If, body: list[ast.stmt], statement: ast.stmt, own: tuple[ast.expr, ...]
) -> bool:
    """Whether the statement is a plain one whose names every rank has, but for those in what only one rank gives (`own`)."""
    if isinstance(statement, _COMPOUND | _LEAVING) or any(_leaves(one) for one in body[: body.index(statement)]):
        return False
    of_one = {node for expression in own for node in ast.walk(expression)}
    read = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    wanted = {node.id for node in read if node not in of_one}
    bound_inside = {name for one in (*guard.body, *guard.orelse) for name in _stored(one) if one is not statement}
    return not (wanted & bound_inside or wanted & _bound_by_rank(tree))


def _bound_by_rank(tree: ast.Module) -> set[str]:
    """Names that are assigned under a condition on the rank and nowhere else."""
    everywhere, under = _bindings(tree, False), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and is_about_rank(node.test):
            under |= {name for one in (*node.body, *node.orelse) for name in _stored(one)}
    return under - everywhere


def _bindings(node: ast.AST, by_rank: bool) -> set[str]:
    """The names that are bound outside of any condition on the rank."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        mine = by_rank or (isinstance(node, ast.If) and is_about_rank(node.test) and isinstance(child, ast.stmt))
        if not mine:
            found |= _names_bound_by(child)
        found |= _bindings(child, mine)
    return found


def _names_bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.alias):
        return {(node.asname or node.name).partition(".")[0]}
    return {node.name} if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else set()


def _stored(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        yield from _names_bound_by(inner)


def names_loaded(node: ast.AST) -> Iterator[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(inner, _LEAVING) for inner in ast.walk(node))


def shared_rest(guard: ast.If) -> str | None:
    """What is left of a condition without the rank; None where that may be each rank's own (`loss < best and rank == 0`)."""
    rest = _without_the_rank(guard.test)
    shared = all(_COUNTED.search(name) for part in rest for name in names_loaded(part))
    return " and ".join(map(ast.unparse, rest)) if shared else None


def _without_the_rank(test: ast.expr) -> list[ast.expr]:
    """What is left of `step == 3 and rank == 0` without the rank; [] where nothing is, or it is no such conjunction."""
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
        return []
    rest = [part for part in test.values if not is_about_rank(part)]
    return rest if len(rest) < len(test.values) else []


class _Move:
    """One statement on its way out of an `if`."""

    def __init__(
        self,
        lines: Sequence[str],
        guard: ast.If,
        body: list[ast.stmt],
        statement: ast.stmt,
        rest: str,
        own: tuple[ast.expr, ...] = (),
    ) -> None:
        self.lines = [line.rstrip("\r\n") for line in lines]
        self.guard, self.body, self.statement, self.rest, self.own = guard, body, statement, rest, own
        self.first, self.last = statement.lineno, statement.end_lineno or statement.lineno
        self.head = self.lines[guard.lineno - 1]
        self.margin = self.head[: len(self.head) - len(self.head.lstrip())]

    def edits(self, path: str) -> tuple[Edit, ...]:
        rows = self.rows()
        if not rows or not self.head.lstrip().startswith("if ") or len(self.freed()) > _MOST_ROWS:
            return ()
        return (rows_replaced(path, rows[0], rows[1], rows[2]),)

    def rows(self) -> tuple[int, int, list[str]] | None:
        """(first, last, what stands there instead), of the lines that change."""
        at, alone = self.body.index(self.statement), len(self.body) == 1
        if self.first <= (self.guard.test.end_lineno or self.guard.lineno):
            return self._on_the_line_of_the_condition() if alone and not self.guard.orelse else None
        if not self._has_its_lines_alone():
            return None
        if self.body is self.guard.body and not self.guard.orelse:
            return self._from_the_body(at)
        if at == len(self.body) - 1 and self.body is self.guard.orelse:
            return self._from_the_end(self._line_of_else() if alone else self.first)
        return None

    def _from_the_body(self, at: int) -> tuple[int, int, list[str]] | None:
        if len(self.body) == 1:
            between = self.lines[self.guard.lineno : self.first - 1]
            if self._head_ends() != self.guard.lineno or any(row.strip() for row in between):
                return None  # a comment of its own, or a condition over several lines
            return self.guard.lineno, self.last, self.freed()
        if at == 0 and self._head_ends() == self.guard.lineno:
            return (
                self.guard.lineno,
                self.last,
                [*self.freed(), *self.lines[self.guard.lineno : self.first - 1], self.head],
            )
        if at == len(self.body) - 1:
            return self.first, self.last, self.freed()
        again = [self.head] if self._head_ends() == self.guard.lineno else []
        return (self.first, self.last, [*self.freed(), *again]) if again else None

    def _from_the_end(self, first: int) -> tuple[int, int, list[str]] | None:
        return (first, self.last, self.freed()) if first else None

    def _line_of_else(self) -> int:
        """The line `else:` right above the statement, 0 where it is not alone there."""
        above = self.first - 1
        return above if re.fullmatch(r"\s*else\s*:\s*", self.lines[above - 1]) else 0

    def _head_ends(self) -> int:
        return self.guard.test.end_lineno or self.guard.lineno

    def _on_the_line_of_the_condition(self) -> tuple[int, int, list[str]] | None:
        if self.first != self.last or self.first != self.guard.lineno:
            return None
        text = self.head.encode()[self.statement.col_offset :].decode()
        return self.first, self.last, [f"{self.margin}if {self.rest}: {text}" if self.rest else self.margin + text]

    def _has_its_lines_alone(self) -> bool:
        before = self.lines[self.first - 1].encode()[: self.statement.col_offset].decode()
        after = self.lines[self.last - 1].encode()[self.statement.end_col_offset or 0 :].decode().strip()
        return not before.strip() and (not after or after.startswith("#"))

    def _with_what_one_gives(self) -> list[str]:
        """The statement's lines, with `parts if rank == 0 else None` for the list that only one rank gives."""
        lines = [line.encode() for line in self.lines]
        for one in self.own:
            row, choice = lines[one.lineno - 1], f" if {ast.unparse(self.guard.test)} else None".encode()
            lines[one.lineno - 1] = row[: one.end_col_offset] + choice + row[one.end_col_offset :]
        return [line.decode() for line in lines[self.first - 1 : self.last]]

    def freed(self) -> list[str]:
        """The statement at the depth of the `if`, or under what is left of its condition."""
        text = self._with_what_one_gives()
        if self.rest:
            return [f"{self.margin}if {self.rest}:", *text]
        deeper = len(text[0]) - len(text[0].lstrip()) - len(self.margin)
        return [row[deeper:] if not row[:deeper].strip() else row for row in text]
