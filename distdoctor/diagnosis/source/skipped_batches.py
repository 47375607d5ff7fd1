"""How a loop leaves out the first batches of a loader: `if i < done: continue`, or `islice(loader, done, None)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.source_file import SourceFile, last_word, source_file
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

MOST = 20  # values that a bound is followed through
_LOADS = re.compile(r"(?:^|_)(?:load|restore|resume)", re.IGNORECASE)


def skipping_test(sources: Mapping[str, str], loop: SourceLine) -> tuple[SourceLine, str, str] | None:
    """(line, test or call, the name of the bound) of the `for` over a loader that begins at a line, where every turn of a loop
    around it leaves out the same batches: nothing in that loop changes the bound, which was read from a checkpoint. None where
    that is not so."""
    file = source_file(sources, loop.path)
    inner = next((one for one in file.nodes(ast.For) if one.lineno == loop.line), None) if file is not None else None
    outer = _loop_around(file, inner) if file is not None and inner is not None else None
    if file is None or inner is None or outer is None:
        return None
    changed, program = _changed_in(outer), program_of(sources)
    for node, how, bound in _bounds(inner):
        if bound not in changed and _was_loaded(program, node, bound):
            return SourceLine(loop.path, node.lineno, loop.function), ast.unparse(how), bound
    return None


def _bounds(loop: ast.For) -> Iterator[tuple[ast.stmt | ast.expr, ast.expr, str]]:
    """(where, test or call, the name of the bound): below it, batches are left out."""
    calls = [node for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
    for call in calls:
        if (
            last_word(call.func) == "islice"
            and len(call.args) > 2
            and isinstance(call.args[1], ast.Name | ast.Attribute)
        ):
            yield call, call, ast.unparse(call.args[1])
    if (
        isinstance(loop.target, ast.Tuple)
        and calls
        and calls[0] is loop.iter
        and last_word(calls[0].func) == "enumerate"
    ):
        index = ast.unparse(loop.target.elts[0])
        for statement in loop.body:
            if isinstance(statement, ast.If) and (bound := _bound(statement, index)):
                yield statement, statement.test, bound


def _bound(statement: ast.If, index: str) -> str:
    """The `done` of `if i < done: continue`; "" of anything else."""
    if [type(one) for one in statement.body] != [ast.Continue]:
        return ""
    test = statement.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Lt | ast.LtE):
        return ""
    bound = test.comparators[0]
    of_index = ast.unparse(test.left) == index and isinstance(bound, ast.Name | ast.Attribute)
    return ast.unparse(bound) if of_index else ""


def _was_loaded(program: UserProgram, at: ast.AST, bound: str) -> bool:
    """Whether something is stored under this name that came out of a call which loads: `state["done"]` of `torch.load(path)`."""
    scope = program.scope_of(at)
    waiting = [value for _, value in program.stores(bound.rpartition(".")[2], None if "." in bound else scope)]
    for value in waiting:  # grows
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and _LOADS.search(last_word(node.func)):
                return True
            if isinstance(node, ast.Name) and len(waiting) < MOST:
                waiting += [one for _, one in program.stores(node.id, program.scope_of(value)) if one not in waiting]
    return False


def _loop_around(file: SourceFile, inner: ast.stmt) -> ast.For | ast.While | None:
    body = ast.walk(file.function_at(inner.lineno))
    loops = [one for one in body if isinstance(one, ast.For | ast.While) and one is not inner]
    around = [one for one in loops if one.lineno < inner.lineno <= (one.end_lineno or 0)]
    return max(around, key=lambda one: one.lineno, default=None)


def _changed_in(loop: ast.stmt) -> set[str]:
    """What is assigned in a loop, also by `for` and `+=`."""
    stored = (node for node in ast.walk(loop) if isinstance(node, ast.Name | ast.Attribute))
    return {ast.unparse(node) for node in stored if isinstance(node.ctx, ast.Store)}
