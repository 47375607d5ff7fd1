"""The test by which a loop leaves out the first batches of a loader: `if i < done: continue`."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import SourceFile, last_word, source_file
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

MOST = 20  # values that a bound is followed through
_LOADS = re.compile(r"(?:^|_)(?:load|restore|resume)", re.IGNORECASE)


def skipping_test(sources: Mapping[str, str], loop: SourceLine) -> tuple[SourceLine, str, str] | None:
    """(line, test, the name of the bound) of the `for i, batch in enumerate(loader)` that begins at a line, where every turn of a
    loop around it leaves out the same batches: nothing in that loop changes the bound, which was read from a checkpoint. None
    where that is not so."""
    file = source_file(sources, loop.path)
    inner = next((one for one in file.nodes(ast.For) if one.lineno == loop.line), None) if file is not None else None
    outer = _loop_around(file, inner) if file is not None and inner is not None else None
    if file is None or inner is None or outer is None or not isinstance(inner.target, ast.Tuple):
        return None
    if not isinstance(inner.iter, ast.Call) or last_word(inner.iter.func) != "enumerate":
        return None
    index = ast.unparse(inner.target.elts[0])
    for statement in inner.body:
        bound = _bound(statement, index)
        if bound and bound not in _changed_in(outer) and _was_loaded(program_of(sources), statement, bound):
            assert isinstance(statement, ast.If)
            return SourceLine(loop.path, statement.lineno, loop.function), ast.unparse(statement.test), bound
    return None


def _bound(statement: ast.stmt, index: str) -> str:
    """The `done` of `if i < done: continue`; "" of anything else."""
    if not isinstance(statement, ast.If) or [type(one) for one in statement.body] != [ast.Continue]:
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
