"""Conditions around a line of the user's source: which of them depend on the rank, and for which ranks they hold.

Pure `ast`, for the verdict on a hang and for lint alike. Lines count from 1.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from distdoctor.diagnosis.source.rank_words import (
    RANK_VARIABLES,
    is_of_part,
    lets_one_in,
    names_global_rank,
    names_main,
    names_process,
    names_some_rank,
)
from distdoctor.diagnosis.source.source_file import FunctionNode, SourceFile, dotted, last_word, source_file
from distdoctor.recording.recording import SourceLine

ENCLOSES, LEAVES = "encloses", "leaves"
_LEAVING = ast.Continue | ast.Break | ast.Return | ast.Raise


@dataclass(frozen=True)
class Guard:
    """A condition that decides whether a line is reached.

    `how`: it ENCLOSES the line, or it LEAVES before it (`if ...: continue`). `negated`: the line is reached when it is false.
    `on_rank`: it mentions the rank. `instead`: the branch that holds the line ends by leaving, so that what it does stands in the
    place of what follows. `only_if` is the condition under which the line is reached, in Python.
    """

    line: int
    test: str
    how: str
    negated: bool
    on_rank: bool
    instead: bool = False
    function: str = ""  # that the condition stands in; "" for the module
    word: str = ""  # the name in it that is taken for the rank
    _expression: ast.expr | None = None

    @property
    def only_if(self) -> str:
        return f"not ({self.test})" if self.negated else self.test

    def lets_through(self, rank: int) -> bool | None:
        """Whether this rank reaches the line; None when the condition depends on more than the rank."""
        if self._expression is None:  # a decorator: rank 0 alone
            return rank == 0
        value = _value(self._expression, rank)
        return None if value is None else bool(value) is not self.negated

    def lets_only(self, ranks: Iterable[int], others: Iterable[int]) -> bool:
        """Whether all of these ranks reach the line, and none of the others."""
        return all(self.lets_through(rank) is True for rank in ranks) and all(
            self.lets_through(rank) is False for rank in others
        )


def guards_at(sources: Mapping[str, str], site: SourceLine) -> tuple[Guard, ...]:
    """The conditions that decide whether a line is reached, the innermost first, up to the function that it stands in.

    A function that is called in one place of the file stands under the conditions of that place as well.
    """
    file = source_file(sources, site.path)
    return _guards_at(file, site.line, frozenset()) if file is not None else ()


def guard_for(
    sources: Mapping[str, str], site: SourceLine, ranks: Collection[int], others: Collection[int]
) -> tuple[SourceLine, Guard] | None:
    """The innermost condition that lets only `ranks` of all these come to a line, and where it stands; None: there is none."""
    for guard in guards_at(sources, site):
        if guard.on_rank and guard.lets_only(ranks, others):
            return SourceLine(site.path, guard.line, guard.function or site.function), guard
    return None


def guards_of_one(sources: Mapping[str, str], site: SourceLine, but_not_of: SourceLine) -> Iterator[Guard]:
    """The conditions around a line that are not around the other line as well, the innermost first."""
    others = guards_at(sources, but_not_of) if site.path == but_not_of.path else ()
    shared = {(guard.line, guard.negated) for guard in others}
    return (guard for guard in guards_at(sources, site) if (guard.line, guard.negated) not in shared)


def _guards_at(file: SourceFile, line: int, seen: frozenset[str]) -> tuple[Guard, ...]:
    path = file.path_to(line)
    rank_names = _names_made_from_rank(file)
    found: list[Guard] = []
    for depth in range(len(path) - 1, -1, -1):
        node = path[depth]
        inner = path[depth + 1] if depth + 1 < len(path) else None
        if isinstance(node, ast.If) and _asks_for_main_module(node.test):
            continue
        if isinstance(node, ast.If | ast.While) and inner is not None and inner is not node.test:
            branch = node.orelse if inner in node.orelse else node.body
            instead = isinstance(node, ast.If) and isinstance(branch[-1], _LEAVING) and inner in branch
            found.append(_guard(node, ENCLOSES, branch is node.orelse, rank_names, instead=instead))
        elif isinstance(node, ast.IfExp) and inner is not None and inner is not node.test:
            found.append(_guard(node, ENCLOSES, inner is node.orelse, rank_names))
        if inner is not None:
            found += _leaves_before(node, inner, rank_names)
        if isinstance(node, FunctionNode):
            found += [
                Guard(d.lineno, f"@{ast.unparse(d)}", ENCLOSES, False, True, word=ast.unparse(d))
                for d in node.decorator_list
                if lets_one_in(d)
            ]
            call = _only_call(file, node) if node.name not in seen else None
            here = (replace(guard, function=node.name) for guard in found)
            return (*here, *(_guards_at(file, call, seen | {node.name}) if call else ()))
    return tuple(found)


def _only_call(file: SourceFile, function: FunctionNode) -> int | None:
    """The line of the one call of this function in its file, None when it is called in several places, or handed around."""
    word = f"self.{function.name}" if file.scope_by_node[function].of_class else function.name
    used = [node for node in (*file.names, *file.attributes) if dotted(node) == word]
    call = file.parent[used[0]] if len(used) == 1 else None
    return call.lineno if isinstance(call, ast.Call) and call.func is used[0] else None


def _asks_for_main_module(test: ast.expr) -> bool:
    """`if __name__ == "__main__":` is passed by every rank that runs the script."""
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def of_test(test: ast.expr) -> Guard:
    """A test by itself, as the condition that what it lets through stands under."""
    return Guard(
        test.lineno, ast.unparse(test), ENCLOSES, False, is_about_rank(test), word=rank_word(test), _expression=test
    )


def alternatives(sources: Mapping[str, str], one: SourceLine, other: SourceLine) -> Guard | None:
    """The condition of which the two lines are different branches; None when they are not."""
    file = source_file(sources, one.path) if one.path == other.path else None
    if file is None or one.line == other.line:
        return None
    mine, theirs = file.path_to(one.line), file.path_to(other.line)
    names = _names_made_from_rank(file)
    for depth, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a is not b:
            parent = mine[depth - 1]
            if isinstance(parent, ast.If) and (a in parent.orelse) != (b in parent.orelse):
                return _guard(parent, ENCLOSES, a in parent.orelse, names)
            return None
    return None


def chosen_by_rank(sources: Mapping[str, str], one: SourceLine, other: SourceLine) -> bool:
    """Whether a condition on the rank lets each turn through one of the two lines alone: `if owner == rank: ... else: ...`.

    Then ranks go through them in different orders by design.
    """
    kept_out = {(guard.line, not guard.negated) for guard in guards_at(sources, other) if guard.on_rank}
    same = one.path == other.path
    return same and any(guard.on_rank and (guard.line, guard.negated) in kept_out for guard in guards_at(sources, one))


def is_about_rank(expression: ast.AST, rank_names: frozenset[str] = frozenset()) -> bool:
    """Whether the value of an expression depends on the rank, by the names in it."""
    return bool(rank_word(expression, rank_names))


def rank_word(expression: ast.AST, rank_names: frozenset[str] = frozenset()) -> str:
    """The name in an expression that is taken for the rank, "" when there is none."""
    for node in _what_may_differ(expression):
        word = last_word(node)
        if word and (names_some_rank(word) or names_main(word) or word in rank_names):
            return word
        if isinstance(node, ast.Constant) and node.value in RANK_VARIABLES:
            return str(node.value)
    return ""


def _what_may_differ(expression: ast.AST) -> Iterator[ast.AST]:
    """The nodes of an expression but for questions that all ranks answer alike."""
    if isinstance(expression, ast.Compare) and _asks_for_ranks(expression):
        return
    yield expression
    for child in ast.iter_child_nodes(expression):
        yield from _what_may_differ(child)


def _asks_for_ranks(node: ast.Compare) -> bool:
    """Whether it is asked whether there are ranks at all: `rank != -1`, `local_rank is None`, `"RANK" in os.environ`."""
    operator, other = node.ops[0], node.comparators[0]
    if isinstance(operator, ast.In | ast.NotIn):
        return _is_variable(node.left)
    negative = isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.USub)
    value = other.value if isinstance(other, ast.Constant) else ""
    return negative or value is None or (isinstance(operator, ast.Lt | ast.GtE) and value == 0)


def statement_at(sources: Mapping[str, str], site: SourceLine) -> str:
    """The statement that a line belongs to, on one line; "" when there is none."""
    file = source_file(sources, site.path)
    for node in reversed(file.path_to(site.line)) if file is not None else ():
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            return " ".join(ast.unparse(node).split())
    return ""


def _guard(
    node: ast.If | ast.While | ast.IfExp, how: str, negated: bool, rank_names: frozenset[str], *, instead: bool = False
) -> Guard:
    word, test = rank_word(node.test, rank_names), ast.unparse(node.test)
    return Guard(node.lineno, test, how, negated, bool(word), instead, word=word, _expression=node.test)


def _leaves_before(block: ast.AST, inner: ast.AST, rank_names: frozenset[str]) -> Iterator[Guard]:
    """`if ...: continue` (break, return, raise) in front of `inner` in the same block: the line is reached when it is false."""
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(block, name, None)
        if not isinstance(statements, list) or inner not in statements:
            continue
        for statement in reversed(statements[: statements.index(inner)]):
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], _LEAVING):
                yield _guard(statement, LEAVES, True, rank_names)


@lru_cache(maxsize=64)
def _names_made_from_rank(file: SourceFile) -> frozenset[str]:
    """Variables and attributes that are assigned the rank, or a comparison with it (`leader = dist.get_rank() == 0`,
    `self.gpu_id = int(os.environ["LOCAL_RANK"])`)."""
    names: set[str] = set()
    for node in file.nodes(ast.Assign):
        compares = isinstance(node.value, ast.Compare | ast.BoolOp | ast.UnaryOp) and is_about_rank(node.value)
        if compares or _is_rank(node.value):
            names |= {last_word(one) for one in node.targets if isinstance(one, ast.Name | ast.Attribute)}
    return frozenset(names)


def _is_rank(node: ast.expr) -> bool:
    """Whether an expression is the number of the process itself: what a launcher sets, `get_rank()`, or that modulo something."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _is_rank(node.left)
    if isinstance(node, ast.Subscript):
        return last_word(node.value) == "environ" and _is_variable(node.slice)
    if not isinstance(node, ast.Call):
        return False
    if last_word(node.func) == "int" and len(node.args) == 1:
        return _is_rank(node.args[0])
    if node.args:
        return last_word(node.func) in ("get", "getenv") and _is_variable(node.args[0])
    return names_process(last_word(node.func))


def _is_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in RANK_VARIABLES


def _value(node: ast.expr, rank: int) -> int | bool | None:
    """The value of an expression for one rank, None when it depends on anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = _value(node.operand, rank)
        return None if value is None else not value
    if isinstance(node, ast.BoolOp):
        return _of_several(node, rank)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(node, rank)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        left, right = _value(node.left, rank), _value(node.right, rank)
        return None if left is None or not right else left % right
    return _rank_or_main(node, rank)


def _of_several(node: ast.BoolOp, rank: int) -> bool | None:
    values = [_value(part, rank) for part in node.values]
    decisive = isinstance(node.op, ast.Or)
    if any(value is not None and bool(value) is decisive for value in values):
        return decisive
    return None if None in values else not decisive


def _compared(node: ast.Compare, rank: int) -> bool | None:
    left, operator, other = _value(node.left, rank), node.ops[0], node.comparators[0]
    if isinstance(operator, ast.In | ast.NotIn):
        if left is None or not isinstance(other, ast.Tuple | ast.List | ast.Set):
            return None
        members = [_value(element, rank) for element in other.elts]
        return None if None in members else (left in members) is isinstance(operator, ast.In)
    right = _value(other, rank)
    if left is None or right is None:
        return None
    answers = {ast.Eq: left == right, ast.NotEq: left != right, ast.Lt: left < right, ast.LtE: left <= right}
    answers |= {ast.Gt: left > right, ast.GtE: left >= right}
    return answers.get(type(operator))


def _rank_or_main(node: ast.expr, rank: int) -> int | bool | None:
    """The rank itself (`rank`, `self.rank`, `dist.get_rank()`), or whether it is the main one. A local rank is not known."""
    if isinstance(node, ast.Call):
        return _rank_or_main(node.func, rank) if not node.args and not node.keywords else None
    word = last_word(node)
    if not word or is_of_part(word):
        return None
    if names_global_rank(word):
        return rank
    return rank == 0 if names_main(word) else None
