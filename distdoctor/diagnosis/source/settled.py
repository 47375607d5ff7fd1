"""Conditions that cannot change their answer: what they ask for was made once, before the loop that the line stands in.

Who has passed such a condition once passes it every time, so it is not what let ranks part later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.diagnosis.source.user_program import UserProgram

DEEPEST = 5  # from a value to what it is made of
_MAKING = frozenset({"__init__", "__post_init__", "<module>", ""})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def is_settled(program: UserProgram, value: ast.AST, steps: int = DEEPEST) -> bool:
    """Whether an expression has the same value each time it is asked for; False where that cannot be told."""
    if steps == 0 or not isinstance(value, ast.expr):
        return False
    if isinstance(value, ast.BoolOp | ast.UnaryOp | ast.Compare | ast.IfExp):
        return _all_settled(program, ast.iter_child_nodes(value), steps)
    if isinstance(value, ast.Call):
        returned = [program.returned(target) for target in program.targets(value)]
        if returned:
            return all(ways and _all_settled(program, ways, steps - 1) for ways in returned)
        return is_about_rank(value) and _all_settled(program, [*value.args, *value.keywords], steps)
    if isinstance(value, ast.Subscript):
        return isinstance(value.slice, ast.Constant) and is_about_rank(value.slice)  # os.environ["RANK"]
    if isinstance(value, ast.Constant) or is_about_rank(value):
        return True
    if isinstance(value, ast.Name):
        return value.id == "self" or _is_settled_variable(program, value, steps)
    if isinstance(value, ast.Attribute):
        stores = program.stores(value.attr, None)
        if not stores and getattr(value.value, "id", "") == "self":
            return False  # inherited from where we do not see it change
        made = all(_is_made_once(program, statement) for statement, _ in stores)
        return made and is_settled(program, value.value, steps - 1)
    return False


def _all_settled(program: UserProgram, parts: Iterable[ast.AST], steps: int) -> bool:
    values = (part.value if isinstance(part, ast.keyword) else part for part in parts)
    return all(is_settled(program, value, steps) for value in values if isinstance(value, ast.expr))


def _is_settled_variable(program: UserProgram, name: ast.Name, steps: int) -> bool:
    scope = program.scope_of(name)
    stores = program.stores(name.id, scope)
    if any(not isinstance(statement, ast.Assign | ast.AnnAssign) for statement, _ in stores):
        return False
    passed = [] if stores else program.arguments(scope, name.id)
    values = [value for _, value in stores] + passed
    return bool(values) and all(is_settled(program, one, steps - 1) for one in values)


def _is_made_once(program: UserProgram, statement: ast.AST) -> bool:
    """Whether a statement runs before the loops do: where an object or the module is made, or in a body that goes on to loop."""
    scope = program.scope_of(statement)
    if any(isinstance(parent, _LOOPS) for parent, _ in program.above(statement)):
        return False
    return scope.name in _MAKING or any(
        isinstance(node, _LOOPS) and node.lineno > getattr(statement, "lineno", 0) for node in program.inside(scope)
    )
