"""The shape of training code: loops that train, what flows into backward, blocks without gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from distdoctor.diagnosis.source.source_file import FunctionNode, Loop, Scope, dotted, last_word, lineno, within
from distdoctor.lint.program import ParsedFiles

_NO_GRAD = ("no_grad", "inference_mode", "set_grad_enabled")


def method_calls(scope: Scope, *words: str) -> list[ast.Call]:
    """The calls `anything.word(...)` of a scope."""
    return [call for call in scope.calls if isinstance(call.func, ast.Attribute) and call.func.attr in words]


def backwards(scope: Scope) -> list[ast.Call]:
    """`loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`."""
    return [call for call in method_calls(scope, "backward") if last_word(call.func) == "backward"]


def training_loops(scope: Scope) -> Iterator[tuple[Loop, list[ast.Call]]]:
    """The innermost loops that hold a backward, with their backwards."""
    for loop in scope.loops:
        inside = [call for call in backwards(scope) if scope.file.loops_around(call)[:1] == [loop]]
        if inside:
            yield loop, inside


def trains(loop: Loop, scope: Scope, program: ParsedFiles) -> bool:
    """Whether a turn of the loop computes gradients, itself or in a function that it calls."""
    calls = [call for call in scope.calls if within(loop, call, scope.file)]
    if any(last_word(call.func) == "backward" for call in calls):
        return True
    return any(backwards(target) for target in program.reached(scope, 2, calls))


def without_gradients(node: ast.AST, scope: Scope) -> bool:
    """Whether a node runs under no_grad or inference_mode, by `with` or by decorator."""
    for outer, _ in scope.file.enclosing(node):
        if isinstance(outer, ast.With | ast.AsyncWith) and any(_is_no_grad(i.context_expr) for i in outer.items):
            return True
        if isinstance(outer, FunctionNode) and any(_is_no_grad(one) for one in outer.decorator_list):
            return True
    return False


def _is_no_grad(node: ast.expr) -> bool:
    return any(last_word(one) in _NO_GRAD for one in ast.walk(node))


def names_in(node: ast.AST) -> set[str]:
    """The names and dotted names that an expression reads."""
    found = {dotted(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)}
    return found - {""}


def flowing_from(start: ast.AST, scope: Scope) -> set[str]:
    """The names that hold something computed from a node, by the assignments after it."""
    file = scope.file
    first = file.statement(start)
    tainted: set[str] = set()
    for statement in sorted(scope.assigns, key=lineno):
        if statement.value is None or lineno(statement) < lineno(first):
            continue
        if statement is first or names_in(statement.value) & tainted:
            if _detached(statement.value):
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            tainted |= {name for target in targets for name in target_names(target)}
    return tainted


def _detached(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_word(value.func) in (
        "detach",
        "item",
        "tolist",
        "cpu",
        "numpy",
        "argmax",
    )


def target_names(target: ast.expr) -> Iterator[str]:
    """The names that an assignment changes; `new` of `new[key] = value`."""
    for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
        if isinstance(one, ast.Subscript):
            one = one.value
        if dotted(one):
            yield dotted(one)


def reaches_backward(start: ast.AST, scope: Scope, ends: Iterable[ast.Call]) -> bool:
    """Whether what a node computes flows into one of the backwards."""
    ends = list(ends)
    if any(within(call, start, scope.file) for call in ends):
        return True
    tainted = flowing_from(start, scope)
    return any(names_in(call) & tainted for call in ends if lineno(call) >= lineno(start))
