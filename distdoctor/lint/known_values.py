"""What a call settles in the function that it reaches: parameters that are literals, and conditions that are decided by them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.source_file import Scope, dotted
from distdoctor.lint.program import ParsedFiles, given_for
from distdoctor.lint.rank_conditions import conditions

Values = Mapping[str, object]  # by the name of a parameter


def values_given(call: ast.Call, scope: Scope, target: Scope, known: Values) -> Values:
    """The parameters of `target` whose values the call settles, where `known` are those of the scope that calls."""
    if isinstance(target.node, ast.Module) or _is_open(call):
        return {}
    found: dict[str, object] = {}
    defaults = dict(_defaults(target.node))
    for name in target.parameters:
        if name in target.bindings:
            continue  # it gets another value on the way
        given = given_for(call, target, name) or defaults.get(name)
        answer = _answered_around(given, call, scope) if given is not None else None
        if answer is not None:
            found[name] = answer
        elif isinstance(given, ast.Constant):
            found[name] = given.value
        elif isinstance(given, ast.Name) and given.id in known and given.id in scope.parameters:
            found[name] = known[given.id]
    return found


def _answered_around(given: ast.expr, call: ast.Call, scope: Scope) -> bool | None:
    """What the conditions under which the call stands say of an argument: `f(share=not alone)` inside `if alone:`."""
    if isinstance(given, ast.UnaryOp) and isinstance(given.op, ast.Not):
        inner = _answered_around(given.operand, call, scope)
        return None if inner is None else not inner
    if not isinstance(given, ast.Name | ast.Attribute):
        return None
    text = ast.unparse(given)
    return next((not one.negated for one in conditions(call, scope) if ast.unparse(one.test) == text), None)


def runs(node: ast.AST, scope: Scope, program: ParsedFiles, known: Values) -> bool:
    """Whether a node of the function may run under these values."""
    return not any(_answer(one.test, known) is one.negated for one in conditions(node, scope)) if known else True


def _is_open(call: ast.Call) -> bool:
    """`f(*args, **options)` may give anything; `mp.spawn(f, args)` does not say which is which."""
    opened = any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
    return opened or dotted(call.func).rpartition(".")[2] in ("spawn", "start_processes", "partial")


def _defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr]]:
    arguments = function.args
    placed = [*arguments.posonlyargs, *arguments.args]
    for parameter, default in zip(reversed(placed), reversed(arguments.defaults), strict=False):
        yield parameter.arg, default
    for parameter, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if value is not None:
            yield parameter.arg, value


def _answer(test: ast.expr, known: Values) -> bool | None:
    """Whether a condition holds; None where that depends on more than these values."""
    if isinstance(test, ast.Name):
        return bool(known[test.id]) if test.id in known else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _answer(test.operand, known)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        answers = [_answer(part, known) for part in test.values]
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in answers else None if None in answers else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Name):
        return _compared(test.left.id, test.ops[0], test.comparators[0], known)
    return None


def _compared(name: str, how: ast.cmpop, other: ast.expr, known: Values) -> bool | None:
    if name not in known or not isinstance(other, ast.Constant):
        return None
    if isinstance(how, ast.Is | ast.Eq):
        return known[name] == other.value
    return known[name] != other.value if isinstance(how, ast.IsNot | ast.NotEq) else None
