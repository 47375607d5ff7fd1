"""
DD302 constant-set-epoch: set_epoch is called every epoch, but always with the same value.

What it means    DistributedSampler shuffles with seed + epoch. Given the same number each time (the number of epochs
                 instead of the current one), it draws the same order each time.
Why it hurts     Same as without set_epoch: one fixed order, and the code looks right.
How we know      The argument is a constant, or a name that nothing in the epoch loop changes.
What to do       Pass the counter of the epoch loop.
When it is fine  The value changes in a way that the source does not show, or the same loop also tells the sampler its counter:
                 nothing is reported.
Source           torch.utils.data.distributed.DistributedSampler, the warning on set_epoch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.source_file import Loop, Scope, lineno, within
from distdoctor.lint.program import ParsedFiles, given_for
from distdoctor.lint.rule import Sighting, replace_node, rule
from distdoctor.lint.training import method_calls, names_in


@rule("DD302", "constant-set-epoch", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in method_calls(scope, "set_epoch"):
            if len(call.args) != 1 or call.keywords:
                continue
            loops = _epoch_loops(call, scope)
            if loops and _is_constant(call.args[0], loops, scope) and not _is_told_besides(call, loops, scope):
                yield _sighting(call, call.args[0], loops[-1], scope)
            elif isinstance(call.args[0], ast.Name) and call.args[0].id in scope.parameters and not loops:
                yield from _given_by_callers(call.args[0].id, scope, program)


def _given_by_callers(parameter: str, scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    if any(binding.name == parameter for binding in scope.bindings.get(parameter, ())):
        return
    for site in program.callers(scope):
        given, loops = given_for(site.call, scope, parameter), _epoch_loops(site.call, site.scope)
        if given is None or not loops or not _is_constant(given, loops, site.scope):
            continue
        if not _is_told_besides(site.call, loops, site.scope):
            yield _sighting(site.call, given, loops[-1], site.scope)


def _is_told_besides(call: ast.Call, loops: list[Loop], scope: Scope) -> bool:
    """Whether the same loop makes the same call with what changes: the constant is then for something else, an evaluation."""
    return any(
        other is not call
        and ast.unparse(other.func) == ast.unparse(call.func)
        and within(loops[-1], other, scope.file)
        and not all(
            _is_constant(given, loops, scope) for given in (*other.args, *(one.value for one in other.keywords))
        )
        for other in scope.calls
    )


def _epoch_loops(node: ast.AST, scope: Scope) -> list[Loop]:
    """The loops around a node, when one of them counts epochs."""
    loops = scope.file.loops_around(node)
    return loops if any("epoch" in ast.unparse(_head(loop)).lower() for loop in loops) else []


def _head(loop: Loop) -> ast.expr:
    return loop.test if isinstance(loop, ast.While) else ast.Tuple([loop.target, loop.iter], ast.Load())


def _is_constant(value: ast.expr, loops: list[Loop], scope: Scope) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int)
    if not isinstance(value, ast.Name | ast.Attribute):
        return False
    outer = loops[-1]
    changing = {name for name, bound in scope.bindings.items() if any(_inside(outer, b.statement) for b in bound)}
    if names_in(value) & changing:
        return False
    # a field may be changed by anything that the loop calls; the bound of the loop itself is not
    return isinstance(value, ast.Name) or (isinstance(outer, ast.For) and ast.unparse(value) in _bounds(outer))


def _inside(loop: Loop, statement: ast.AST) -> bool:
    return lineno(loop) <= lineno(statement) <= (loop.end_lineno or 0)


def _bounds(loop: ast.For) -> set[str]:
    calls = isinstance(loop.iter, ast.Call)
    return {ast.unparse(one) for one in loop.iter.args} if calls and isinstance(loop.iter, ast.Call) else set()


def _sighting(call: ast.Call, value: ast.expr, loop: Loop, scope: Scope) -> Sighting:
    told = ast.unparse(value)
    counter = loop.target.id if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else ""
    new = counter if counter and counter != "_" else ""
    return Sighting(
        node=call,
        scope=scope,
        title=f"set_epoch is given {told} in every epoch",
        why=f"nothing in the epoch loop (line {lineno(loop)}) changes {told}, so every epoch draws the same order",
        remedy="set-epoch",
        change=f"pass {new or 'the counter of the epoch loop'} instead of {told}",
        edits=(replace_node(value, scope, new),) if new else (),
        evidence={"argument": told},
    )


SICK = """
import torch
def run(sampler, epochs):
    for epoch in range(epochs):
        sampler.set_epoch(epochs)
"""
HEALTHY = """
import torch
def run(sampler, epochs):
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
"""
