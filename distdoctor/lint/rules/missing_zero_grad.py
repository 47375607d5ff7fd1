"""
DD212 missing-zero-grad: gradients are never zeroed and accumulate across steps.

What it means    backward adds to .grad. Without zero_grad each step uses the sum of all gradients since the start.
Why it hurts     The effective learning rate grows step by step; training becomes unstable, and nothing fails.
How we know      A loop computes gradients and steps the optimizer, and neither the loop, nor the functions that it calls, nor its
                 callers zero them. Where functions that the loop calls do this, nothing in their files does.
What to do       Call optimizer.zero_grad() in each step.
When it is fine  Gradients are set to None by hand, or computed by autograd.grad.
Source           torch.optim.Optimizer.zero_grad.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Loop, Scope, dotted, last_word, within
from distdoctor.lint.course import Course, Event, starts
from distdoctor.lint.program import OPTIMIZER, ParsedFiles
from distdoctor.lint.rule import Sighting, insert_after, rule
from distdoctor.lint.training import backwards, method_calls


@rule("DD212", "missing-zero-grad", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    course = Course(program, lambda call, scope: _is_step(call, scope, program) or last_word(call.func) == "backward")
    for scope in program.scopes:
        ends = backwards(scope)
        for step in method_calls(scope, "step"):
            if not _is_step(step, scope, program):
                continue
            if _here(step, ends, scope, program):
                if not any(_zeroes(one) for one in _around(scope, program)):
                    yield _sighting(step, scope, _together(step, ends, scope))
                    break
            elif (found := _over_functions(step, scope, course)) is not None:
                loop, where = found
                yield _sighting(step, scope, not scope.file.loops_around(step), also=((loop, where, "the loop"),))
                break


def _here(step: ast.Call, ends: list[ast.Call], scope: Scope, program: ParsedFiles) -> bool:
    """Whether the function's own loop computes gradients and steps with one optimizer in all its turns."""
    loops = scope.file.loops_around(step)[:1]
    together = any(loop in scope.file.loops_around(end) for end in ends for loop in loops)
    return together and not _is_of_one_turn(step, loops[0], scope, program)


def _over_functions(step: ast.Call, scope: Scope, course: Course) -> tuple[Loop, Scope] | None:
    """The loop that calls the functions which step and compute gradients, where no function of their files zeroes these."""
    program = course.program
    for start in starts(scope, program):
        events = course.of(start)
        for here in (one for one in events if one.call is step):
            call = here.path[0][0]
            for loop in start.file.loops_around(call)[:1]:
                ends = [one for one in events if last_word(one.call.func) == "backward" and one.before(here)]
                ends = [one for one in ends if within(loop, one.path[0][0], start.file)]
                ways = [one for one in ends if len(here.path) > 1 or len(one.path) > 1]
                if not ways or _is_made_on_the_way(here, loop, start, program):
                    continue
                files = here.files | ways[0].files
                files |= {other for file in files for other in program.imported_by(file)}
                if not any(_zeroes(one) for file in files for one in file.scopes):
                    return loop, start
    return None


def _is_made_on_the_way(here: Event, loop: Loop, start: Scope, program: ParsedFiles) -> bool:
    """Whether the optimizer is made anew in each turn: in the loop itself, or in a function that it calls."""
    inner = [scope for _, scope in here.path[1:]]
    return any(
        any(one.scope is scope for scope in inner) or (one.scope is start and within(loop, one.call, start.file))
        for one in program.made(here.receiver, here.scope)
        if one.kind == OPTIMIZER
    )


def _is_step(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """`optimizer.step()` of one of torch's."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "step" and not call.args
    return named and OPTIMIZER in program.kinds(call.func.value, scope)  # type: ignore[attr-defined]


def _is_of_one_turn(step: ast.Call, loop: Loop, scope: Scope, program: ParsedFiles) -> bool:
    """Whether the optimizer is made anew in each turn of the loop, or wrapped anew: it steps once."""
    assert isinstance(step.func, ast.Attribute)
    bound = [one for one in scope.bindings.get(dotted(step.func.value), ()) if not one.looped]
    if bound and all(within(loop, one.statement, scope.file) for one in bound):
        return True
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


def _together(step: ast.Call, ends: list[ast.Call], scope: Scope) -> bool:
    """Whether the step stands in one block with a backward."""
    parent = scope.file.parent.get(scope.file.statement(step))
    return any(scope.file.parent.get(scope.file.statement(end)) is parent for end in ends)


def _sighting(
    step: ast.Call, scope: Scope, fixable: bool, also: tuple[tuple[ast.AST, Scope, str], ...] = ()
) -> Sighting:
    assert isinstance(step.func, ast.Attribute)
    optimizer = dotted(step.func.value) or "optimizer"
    statement = scope.file.statement(step)
    alone = isinstance(statement, ast.Expr) and fixable
    return Sighting(
        node=step,
        scope=scope,
        title=f"gradients are never zeroed and accumulate across steps of {optimizer}",
        why="backward adds to .grad, and nothing in or around this loop zeroes it",
        remedy="zero-grad",
        change=f"{optimizer}.zero_grad()",
        also=also,
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
