"""Values that are plainly the same on all ranks: constants, options of the command line, counters, what is computed of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.user_program import UserProgram, stores_variable

DEEPEST = 6  # from a value to what it is made of
_OPTIONS = frozenset({"parse_args", "parse_known_args"})
_PURE = frozenset({"range", "int", "float", "bool", "min", "max", "abs", "round", "get_world_size"})
_LOOPS = (ast.For, ast.AsyncFor)


def is_replicated(program: UserProgram, value: ast.AST | None, steps: int = DEEPEST) -> bool:
    """Whether every rank has the same value here at the same turn, as far as the source tells; False where it does not tell."""
    if steps == 0 or value is None or is_about_rank(value):
        return False
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.BoolOp | ast.UnaryOp | ast.BinOp | ast.Compare | ast.IfExp):
        return _all(program, (one for one in ast.iter_child_nodes(value) if isinstance(one, ast.expr)), steps)
    if isinstance(value, ast.Call):
        name = last_word(value.func)
        return name in _OPTIONS or (name in _PURE and _all(program, value.args, steps))
    if isinstance(value, ast.Name):
        return _of_variable(program, value, steps)
    if isinstance(value, ast.Attribute):
        return _is_option(program, value.value, steps) or _all(program, _stored(program, value.attr), steps)
    return False


def _all(program: UserProgram, values: Iterable[ast.AST], steps: int) -> bool:
    known = list(values)
    return bool(known) and all(is_replicated(program, one, steps - 1) for one in known)


def _stored(program: UserProgram, attribute: str) -> list[ast.expr]:
    return [value for _, value in program.stores(attribute, None)]


def _of_variable(program: UserProgram, name: ast.Name, steps: int) -> bool:
    scope = program.scope_of(name)
    stores = [one for one in program.stores(name.id, scope) if stores_variable(one[0], name.id)]
    default = scope.default_of(name.id)
    given = [] if stores else program.passed(scope, name.id) + ([default] if default is not None else [])
    own = (_is_counter(program, statement, name.id, value, steps) for statement, value in stores)
    return all(own) if stores else _all(program, given, steps)


def _is_counter(program: UserProgram, statement: ast.AST, name: str, value: ast.expr, steps: int) -> bool:
    """Whether what a statement gives a variable is replicated: of a loop, its counter."""
    if not isinstance(statement, _LOOPS):
        return is_replicated(program, value, steps - 1)
    loop = statement.iter
    word = last_word(loop.func) if isinstance(loop, ast.Call) else ""
    if word == "enumerate" and isinstance(statement.target, ast.Tuple):
        return getattr(statement.target.elts[0], "id", "") == name
    return word == "range" and getattr(statement.target, "id", "") == name


def _is_option(program: UserProgram, owner: ast.expr, steps: int) -> bool:
    """Whether an object is what the command line was parsed into."""
    if isinstance(owner, ast.Call):
        return last_word(owner.func) in _OPTIONS
    if steps == 0 or not isinstance(owner, ast.Name | ast.Attribute):
        return False
    if isinstance(owner, ast.Attribute):
        made = _stored(program, owner.attr)
    else:
        scope = program.scope_of(owner)
        made = [one for _, one in program.stores(owner.id, scope)] or program.passed(scope, owner.id)
    return bool(made) and all(_is_option(program, one, steps - 1) for one in made)
