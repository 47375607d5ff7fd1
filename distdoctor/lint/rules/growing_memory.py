"""
DD401 growing-memory: a sum or a list of losses keeps the graph of every step.

What it means    total += loss makes total part of the graph; a list of losses holds the graph of each step.
Why it hurts     Memory grows with every step until it runs out.
How we know      The tensor that backward is called on is added or appended to something that outlives the loop.
What to do       total += loss.detach(); losses.append(loss.detach()).
When it is fine  The sum itself is what backward is called on.
Source           PyTorch FAQ: my model reports "cuda runtime error(2): out of memory".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.source_file import Loop, Scope, dotted, last_word, lineno, within
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Sighting, is_among_tests, rule
from distdoctor.lint.training import backwards, training_loops, without_gradients

_OF_DATA = re.compile(r"(?i)loader|dataset|batches|\bdata\b")

FEW = 10  # turns whose graphs are no growth


@rule("DD401", "growing-memory", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in (one for one in program.scopes if not is_among_tests(one.path)):  # what these keep is small
        for loop, ends in training_loops(scope):
            if _is_short(loop) or not _steps(scope, program):
                continue
            losses = {dotted(end.func.value) for end in ends if isinstance(end.func, ast.Attribute)} - {""}
            for statement, kept, keeper in _keeping(loop, losses, scope):
                if _outlives(keeper, loop, scope) and not _is_trained_on(keeper, scope):
                    yield _sighting(statement, kept, keeper, scope)
                    break


def _is_short(loop: Loop) -> bool:
    """A few repetitions, as tests make them: nobody counts them, or their number is written down."""
    if not isinstance(loop, ast.For):
        return False
    ends = loop.iter.args if isinstance(loop.iter, ast.Call) and last_word(loop.iter.func) == "range" else []
    few = bool(ends) and all(isinstance(one, ast.Constant) and isinstance(one.value, int) for one in ends)
    return dotted(loop.target) == "_" or (few and all(int(ast.literal_eval(one)) <= FEW for one in ends))


def _steps(scope: Scope, program: ParsedFiles) -> bool:
    """Whether something is trained here: a gradient that is only looked at comes from a few passes."""
    around = [scope, *program.reached(scope, 2), *(site.scope for site in program.callers(scope))]
    if scope.class_name:
        around += scope.file.classes[scope.class_name].values()
    return any("step" in last_word(call.func) for where in around for call in where.calls)


def _keeping(loop: Loop, losses: set[str], scope: Scope) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    """(where, what is kept, by whom): `total += loss`, `total = total + loss`, `losses.append(loss)`."""
    for assign in scope.assigns:
        if not within(loop, assign, scope.file) or without_gradients(assign, scope):
            continue
        if isinstance(assign, ast.AugAssign) and isinstance(assign.op, ast.Add):
            for term in _terms(assign.value):
                if dotted(term) in losses and not _made_plain(dotted(term), assign, loop, scope):
                    yield assign, term, dotted(assign.target)
    for call in scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1:
            name = dotted(call.args[0])
            if within(loop, call, scope.file) and name in losses and not _made_plain(name, call, loop, scope):
                yield call, call.args[0], dotted(call.func.value)


def _terms(value: ast.expr) -> list[ast.expr]:
    return [value.left, value.right] if isinstance(value, ast.BinOp) else [value]


def _made_plain(name: str, node: ast.AST, loop: Loop, scope: Scope) -> bool:
    """Whether the name is bound to something else between the backward and here: `loss = loss.item()`, `loss.detach_()`."""
    ends = [lineno(end) for end in backwards(scope) if within(loop, end, scope.file)]
    for binding in scope.bindings.get(name, ()):
        if min(ends, default=0) < lineno(binding.statement) <= lineno(node):
            return True
    return any(dotted(call.func) == f"{name}.detach_" for call in scope.calls)


def _outlives(keeper: str, loop: Loop, scope: Scope) -> bool:
    """Whether the keeper was made before the loop, and not made anew inside."""
    if not keeper or "." in keeper:
        return False
    made = [b for b in scope.bindings.get(keeper, ()) if not isinstance(b.statement, ast.AugAssign)]
    steps = [loop, *(outer for outer in scope.file.loops_around(loop) if _goes_through_data(outer))]
    inside = [b for b in made if any(within(one, b.statement, scope.file) for one in steps)]
    return bool(made) and not inside


def _goes_through_data(loop: Loop) -> bool:
    """Whether a turn of a loop is a step: what it goes through bears the name of data."""
    return isinstance(loop, ast.For | ast.AsyncFor) and bool(_OF_DATA.search(ast.unparse(loop.iter)))


def _is_trained_on(keeper: str, scope: Scope) -> bool:
    return any(keeper in {dotted(n) for n in ast.walk(end) if isinstance(n, ast.Name)} for end in backwards(scope))


def _sighting(statement: ast.AST, kept: ast.expr, keeper: str, scope: Scope) -> Sighting:
    name = dotted(kept)
    line, column = kept.end_lineno or kept.lineno, kept.end_col_offset or 0
    return Sighting(
        node=statement,
        scope=scope,
        title=f"{keeper} keeps the graph of every step through {name}",
        why=f"{name} still carries its autograd graph, and {keeper} outlives the loop",
        remedy="detach-what-is-kept",
        change=f"{name}.detach()",
        edits=(Edit(scope.file.path, line, column, line, column, ".detach()"),),
    )


SICK = """
import torch
def run(model, data, optimizer):
    total = 0
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total += loss
    return total
"""
HEALTHY = """
import torch
def run(model, data, optimizer):
    total = 0
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total
"""
