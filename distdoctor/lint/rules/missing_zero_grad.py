"""
DD212 missing-zero-grad: gradients are never zeroed and accumulate across steps.

What it means    backward adds to .grad. Without zero_grad each step uses the sum of all gradients since the start.
Why it hurts     The effective learning rate grows step by step; training becomes unstable, and nothing fails.
How we know      A loop computes gradients and steps the optimizer, and neither the loop, nor the functions that it calls, nor its
                 callers zero them.
What to do       Call optimizer.zero_grad() in each step.
When it is fine  Gradients are set to None by hand, or computed by autograd.grad.
Source           torch.optim.Optimizer.zero_grad.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Loop, Scope, dotted, last_word, within
from distdoctor.lint.program import OPTIMIZER, ParsedFiles
from distdoctor.lint.rule import Sighting, insert_after, rule
from distdoctor.lint.training import backwards, method_calls


@rule("DD212", "missing-zero-grad", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        ends = backwards(scope)
        for step in method_calls(scope, "step"):
            loops = scope.file.loops_around(step)
            if not ends or not loops or not _is_optimizer(step, scope, program):
                continue
            if not any(loop in scope.file.loops_around(end) for end in ends for loop in loops[:1]):
                continue
            if _is_of_one_turn(step, loops[0], scope, program):
                continue
            if not any(_zeroes(one) for one in _around(scope, program)):
                yield _sighting(step, ends, scope)
                break


def _is_optimizer(step: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    assert isinstance(step.func, ast.Attribute)
    return len(step.args) == 0 and OPTIMIZER in program.kinds(step.func.value, scope)


def _is_of_one_turn(step: ast.Call, loop: Loop, scope: Scope, program: ParsedFiles) -> bool:
    """Whether the optimizer is made anew in each turn of the loop: it steps once."""
    assert isinstance(step.func, ast.Attribute)
    made = [one for one in program.made(step.func.value, scope) if one.kind == OPTIMIZER]
    return all(one.scope is scope and within(loop, one.call, scope.file) for one in made)


def _around(scope: Scope, program: ParsedFiles) -> list[Scope]:
    """The function, what it calls, who calls it, and the methods of its class."""
    callers = [site.scope for site in program.callers(scope)]
    methods = scope.file.classes.get(scope.class_name, {}).values()
    return [scope, scope.file.module, *program.reached(scope, 3), *callers, *methods]


def _zeroes(scope: Scope) -> bool:
    for call in scope.calls:
        word = last_word(call.func)
        if "zero" in word or word == "clear_grad" or (word == "setattr" and "grad" in ast.unparse(call)):
            return True
    for assign in scope.assigns:
        targets = assign.targets if isinstance(assign, ast.Assign) else [assign.target]
        if any(last_word(one) == "grad" for one in targets) and assign.value is not None:
            return True
    return False


def _sighting(step: ast.Call, ends: list[ast.Call], scope: Scope) -> Sighting:
    assert isinstance(step.func, ast.Attribute)
    optimizer = dotted(step.func.value) or "optimizer"
    statement = scope.file.statement(step)
    together = any(scope.file.parent.get(scope.file.statement(end)) is scope.file.parent.get(statement) for end in ends)
    alone = isinstance(statement, ast.Expr) and together
    return Sighting(
        node=step,
        scope=scope,
        title=f"gradients are never zeroed and accumulate across steps of {optimizer}",
        why="backward adds to .grad, and nothing in or around this loop zeroes it",
        remedy="zero-grad",
        change=f"{optimizer}.zero_grad()",
        edits=(insert_after(statement, scope, f"{optimizer}.zero_grad()"),) if alone else (),
    )


SICK = """
import torch
def run(model, data):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in data:
        model(batch).sum().backward()
        optimizer.step()
"""
HEALTHY = """
import torch
def run(model, data):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""
