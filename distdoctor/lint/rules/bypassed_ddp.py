"""
DD206 bypassed-ddp: the forward does not go through DDP, so gradients are never averaged.

What it means    DDP prepares its reducer in its own forward. model.module(x), or a call of the unwrapped model, bypasses it.
Why it hurts     Each rank trains alone; nothing fails, and the replicas drift apart.
How we know      The .module of a DDP model, or the model that was passed to DDP, is called, and its result flows into a backward.
What to do       Call the wrapper: model(x).
When it is fine  Evaluation, saving, anything without backward.
Source           torch.nn.parallel.DistributedDataParallel: the forward of the module must go through the wrapper.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, dotted, exclusive, last_word, lineno, within
from distdoctor.lint.program import DDP, ParsedFiles
from distdoctor.lint.rule import Sighting, replace_node, rule
from distdoctor.lint.training import backwards, method_calls, reaches_backward, without_gradients

_NO_FORWARD = (
    "parameters",
    "named_parameters",
    "state_dict",
    "train",
    "eval",
    "to",
    "named_modules",
    "modules",
    "zero_grad",
)


@rule("DD206", "bypassed-ddp", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        ends = backwards(scope)
        if not ends:
            continue
        for call in scope.calls:
            wrapper = (
                _wrapper_of(call.func, scope, program)
                or _unwrapped_before(call.func, scope, program)
                or _wrapped_as(call, scope, program)
            )
            if not wrapper or without_gradients(call, scope) or not _is_trained(wrapper, call, scope):
                continue
            if reaches_backward(call, scope, ends):
                yield _sighting(call, wrapper, scope)
                break


def _is_trained(wrapper: str, call: ast.Call, scope: Scope) -> bool:
    """Whether the parameters are what the gradients are for: not frozen, not in eval mode, and stepped in the same loop."""
    model = {wrapper, f"{wrapper}.module"}
    frozen = [c for c in method_calls(scope, "requires_grad_") if _receiver(c) in model and lineno(c) < lineno(call)]
    modes = [c for c in method_calls(scope, "eval", "train") if _receiver(c) in model and lineno(c) < lineno(call)]
    if frozen or (modes and last_word(max(modes, key=lineno).func) == "eval"):
        return False
    loops = scope.file.loops_around(call)
    return not loops or any(within(loops[-1], step, scope.file) for step in method_calls(scope, "step"))


def _receiver(call: ast.Call) -> str:
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _unwrapped_before(function: ast.expr, scope: Scope, program: ParsedFiles) -> str:
    """`model` of `raw(x)` after `raw = model.module`, or after `raw = model.module if wrapped else model`; of `raw.encode(x)` as
    well where nothing here calls the wrapper, which would have prepared its reducer."""
    of_method = isinstance(function, ast.Attribute) and function.attr not in _NO_FORWARD
    raw = function.value if isinstance(function, ast.Attribute) and of_method else function
    bound = program.bindings(raw.id, scope) if isinstance(raw, ast.Name) else []
    if len(bound) != 1:
        return ""
    value, where = bound[0][0].value, bound[0][1]
    branches = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
    wrapper = next((found for one in branches if (found := _wrapper_of(one, where, program))), "")
    if any(dotted(one) not in (wrapper, f"{wrapper}.module") for one in branches):
        return ""
    return "" if of_method and any(dotted(call.func) == wrapper for call in scope.calls) else wrapper


def _wrapper_of(function: ast.expr, scope: Scope, program: ParsedFiles) -> str:
    """`model` of `model.module` and `model.module.encode` when that is DDP."""
    if isinstance(function, ast.Attribute) and function.attr != "module":
        if function.attr in _NO_FORWARD or not isinstance(function.value, ast.Attribute):
            return ""
        function = function.value
    if isinstance(function, ast.Attribute) and function.attr == "module":
        return dotted(function.value) if program.kinds(function.value, scope) == {DDP} else ""
    return ""


def _wrapped_as(call: ast.Call, scope: Scope, program: ParsedFiles) -> str:
    """The DDP name of a model that is called by the name it had before, when the DDP name is never called here."""
    name = dotted(call.func)
    if not name or "." in name:
        return ""
    for wrapper, bound in scope.bindings.items():
        for one in bound:
            made = one.value if isinstance(one.value, ast.Call) else None
            if made is None or program.kind_of_call(made, scope.file) != DDP or not made.args or wrapper == name:
                continue
            if dotted(made.args[0]) == name and lineno(made) < lineno(call) and not exclusive(made, call, scope.file):
                used = [c for c in scope.calls if dotted(c.func) == wrapper]
                rebound = any(lineno(other.statement) > lineno(made) for other in scope.bindings.get(name, ()))
                return "" if used or rebound or _passed_on(wrapper, scope) else wrapper
    return ""


def _passed_on(name: str, scope: Scope) -> bool:
    return any(dotted(argument) == name for call in scope.calls for argument in call.args)


def _sighting(call: ast.Call, wrapper: str, scope: Scope) -> Sighting:
    function = call.func
    direct = isinstance(function, ast.Attribute) and function.attr == "module"
    called = ast.unparse(function)
    new = wrapper if direct or last_word(function) == called else ""
    return Sighting(
        node=call,
        scope=scope,
        title=f"the forward of {called} bypasses DDP, so its gradients are never averaged",
        why=f"DDP prepares its reducer in its own forward; a backward from this output never triggers the reducer of {wrapper}",
        remedy="call-the-wrapper",
        change=f"{new}(...)" if new else "",
        edits=(replace_node(function, scope, new),) if new and isinstance(function, ast.expr) else (),
    )


SICK = """
import torch
from torch.nn.parallel import DistributedDataParallel
def step(net, batch):
    model = DistributedDataParallel(net)
    loss = model.module(batch).sum()
    loss.backward()
"""
HEALTHY = """
import torch
from torch.nn.parallel import DistributedDataParallel
def step(net, batch):
    model = DistributedDataParallel(net)
    loss = model(batch).sum()
    loss.backward()
    return model.module.state_dict()
"""
