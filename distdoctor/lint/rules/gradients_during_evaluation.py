"""
DD411 gradients-during-evaluation: validation builds autograd graphs that nothing uses.

What it means    model.eval() changes dropout and batch norm; it does not stop autograd. Each forward keeps its activations.
Why it hurts     Evaluation takes as much memory as training, and a batch that would fit runs out of memory.
How we know      A function calls model.eval() and then the model in a loop over inputs, computes no gradient, and neither it
                 nor a caller is under torch.no_grad() or inference_mode().
What to do       Decorate it with @torch.no_grad(), or put the loop inside `with torch.no_grad():`.
When it is fine  Gradients with respect to the input are wanted; the parameters are frozen here; one input is given again and
                 again, to measure.
Source           torch.autograd.grad_mode: evaluation mode is not no_grad.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.source_file import Loop, Scope, dotted, last_word, lineno
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Sighting, insert_before, is_among_tests, rule
from distdoctor.lint.training import method_calls, without_gradients

_WITH_GRADIENTS = (
    "backward",
    "grad",
    "requires_grad_",
    "enable_grad",
    "set_grad_enabled",
    "no_grad",
    "inference_mode",
    "vjp",
)


@rule("DD411", "gradients-during-evaluation", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in (one for one in program.scopes if not is_among_tests(one.path)):  # what these evaluate needs no memory
        if not scope.name or any(last_word(call.func) in _WITH_GRADIENTS for call in scope.calls):
            continue
        if _sets_requires_grad(scope) or (scope.of_class and scope.name == "forward"):
            continue  # a module that calls another is a part of a model, and whoever calls it decides
        models = {dotted(c.func.value) for c in method_calls(scope, "eval") if isinstance(c.func, ast.Attribute)} - {""}
        forward = next((c for c in scope.calls if dotted(c.func) in models and _goes_through_data(c, scope)), None)
        if forward is not None and not _stopped(forward, scope, program, 3) and not _trains_too(scope, forward):
            yield _sighting(forward, scope)


def _sets_requires_grad(scope: Scope) -> bool:
    """`parameter.requires_grad = False`: of a model that is frozen as a whole autograd keeps nothing. Or a setting that is called
    `no_grad` and given to the model."""
    if any(isinstance(one, ast.Constant) and one.value == "no_grad" for one in ast.walk(scope.node)):
        return True
    stored = (one for one in ast.walk(scope.node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return any(one.attr == "requires_grad" for one in stored)


def _goes_through_data(forward: ast.Call, scope: Scope) -> bool:
    """Whether the turns of a loop give the model one input after the other; who repeats a single one measures or warms up."""
    inputs = [*forward.args, *(one.value for one in forward.keywords)]
    read = {one.id for given in inputs for one in ast.walk(given) if isinstance(one, ast.Name)}
    makes_one = any(isinstance(one, ast.Call) for given in inputs for one in ast.walk(given))
    loops = scope.file.loops_around(forward)
    return bool(loops) and (makes_one or any(not read.isdisjoint(_bound_by(loop)) for loop in loops))


def _bound_by(loop: Loop) -> set[str]:
    """The names that a turn of the loop binds, also where it only fills what they hold (`batch["x"] = x`)."""
    stored = (one for one in ast.walk(loop) if isinstance(getattr(one, "ctx", None), ast.Store))
    return {one.id for target in stored for one in ast.walk(target) if isinstance(one, ast.Name)}


def _trains_too(scope: Scope, forward: ast.Call) -> bool:
    """A model that is put back into train() before the forward, or used by an optimizer here."""
    trained = [c for c in method_calls(scope, "train") if lineno(c) < lineno(forward)]
    evaluated = [c for c in method_calls(scope, "eval") if lineno(c) < lineno(forward)]
    latest = max((lineno(c) for c in evaluated), default=0)
    return any(lineno(c) > latest for c in trained) or bool(method_calls(scope, "step"))


def _stopped(node: ast.AST, scope: Scope, program: ParsedFiles, steps: int) -> bool:
    """Whether autograd is off here or in a caller, or for the whole file."""
    if without_gradients(node, scope) or "set_grad_enabled(False)" in scope.file.text:
        return True
    if _decorated_by_others(scope):
        return True
    return steps > 0 and any(_stopped(site.call, site.scope, program, steps - 1) for site in program.callers(scope))


def _decorated_by_others(scope: Scope) -> bool:
    """A decorator that may do it; `staticmethod` and the like do not."""
    words = {last_word(one.func if isinstance(one, ast.Call) else one) for one in scope.decorators}
    return bool(words - {"staticmethod", "classmethod"})


def _sighting(forward: ast.Call, scope: Scope) -> Sighting:
    node = scope.node
    known = scope.file.imports.get("torch") == "torch" and isinstance(node, ast.FunctionDef) and not node.decorator_list
    edits: tuple[Edit, ...] = (
        (insert_before(node, scope, "@torch.no_grad()"),) if known and isinstance(node, ast.stmt) else ()
    )
    return Sighting(
        node=forward,
        scope=scope,
        title=f"{scope.name} evaluates {dotted(forward.func)} with gradients on",
        why="eval() does not stop autograd; every forward keeps its activations until its output is dropped",
        remedy="evaluate-without-gradients",
        change="@torch.no_grad()",
        edits=edits,
    )


SICK = """
import torch
def validate(model, loader):
    model.eval()
    return [model(batch).argmax() for batch in loader] + [model(b) for b in loader]
def validate_all(model, loader):
    model.eval()
    for batch in loader:
        print(model(batch))
"""
HEALTHY = """
import torch
@torch.no_grad()
def validate(model, loader):
    model.eval()
    for batch in loader:
        print(model(batch))
"""
