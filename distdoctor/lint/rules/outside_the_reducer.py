"""
DD219 outside-the-reducer: parameters that DDP does not reduce, because they were added or unfrozen after wrapping.

What it means    DDP lists the parameters that require gradients once, when it wraps. Later ones are not in that list.
Why it hurts     Those parameters train on each rank alone and drift apart.
How we know      After DDP(...), or a function that returns a DDP, a layer is assigned into the model, or requires_grad is set
                 to True.
What to do       Build and unfreeze first, wrap last; wrap again after unfreezing.
When it is fine  Freezing after wrapping; a new DDP(...) after the change.
Source           torch.nn.parallel.DistributedDataParallel: "do not change the model's parameters after wrapping".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, dotted, exclusive, is_constant, lineno, made_by
from distdoctor.lint.program import DDP, ParsedFiles
from distdoctor.lint.rule import Sighting, rule


@rule("DD219", "outside-the-reducer", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        wraps = [call for call in scope.calls if _wraps(call, scope, program)]
        if not wraps:
            continue
        last = max(wraps, key=lineno)
        inside = _names_of(last, scope)
        for node, owner, what in _changes(scope, program):
            if lineno(node) <= lineno(last) or owner not in inside or exclusive(node, last, scope.file):
                continue
            if not _frozen_later(owner, last, scope):
                yield Sighting(
                    node=node,
                    scope=scope,
                    title=f"{what} after DDP has listed its parameters, so they are never averaged",
                    why=f"DDP on line {lineno(last)} registered only the parameters that required gradients at that point",
                    remedy="wrap-last",
                    also=((last, scope, "wraps the model"),),
                )
                break


def _wraps(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """`DDP(net)`, and `build(args)` that returns a wrapped model of its own making."""
    if program.kind_of_call(call, scope.file) == DDP:
        return True
    target = program.target(call, scope)
    return target is not None and bool(target.returns) and program.kinds(call, scope) == {DDP}


def _names_of(wrap: ast.Call, scope: Scope) -> set[str]:
    """`model.module` of `model = DDP(net)`, `net`, and `model` itself."""
    bound = {name for name, ones in scope.bindings.items() if any(one.value is wrap for one in ones)}
    raw = {dotted(wrap.args[0])} - {""} if wrap.args else set()
    return raw | bound | {f"{name}.module" for name in bound}


def _changes(scope: Scope, program: ParsedFiles) -> Iterator[tuple[ast.AST, str, str]]:
    for assign in scope.assigns:
        if not isinstance(assign, ast.Assign) or not isinstance(assign.targets[0], ast.Attribute):
            continue
        target = assign.targets[0]
        if target.attr == "requires_grad" and is_constant(assign.value, True):
            yield assign, _owner(target.value, scope), "parameters are unfrozen"
        elif (made := made_by(assign.value)) is not None and dotted(target.value) != "self":
            name = program.meaning(made.func, scope.file)
            if name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper() and "parallel" not in name:
                yield assign, _base(dotted(target.value), scope), f"{dotted(target)} is added"
    for call in scope.calls:
        unfreezes = not call.args or is_constant(call.args[0], True)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_" and unfreezes:
            yield call, _owner(call.func.value, scope), "parameters are unfrozen"


def _frozen_later(owner: str, wrap: ast.Call, scope: Scope) -> bool:
    """Frozen after wrapping, as a GAN's critic is in every turn: what is unfrozen then was on DDP's list."""
    frozen: list[tuple[ast.AST, ast.expr]] = [
        (call, call.func.value)
        for call in scope.calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "requires_grad_"
        and bool(call.args)
        and is_constant(call.args[0], False)
    ]
    frozen += [
        (assign, target.value)
        for assign in scope.assigns
        if isinstance(assign, ast.Assign) and is_constant(assign.value, False)
        for target in assign.targets
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad"
    ]
    return any(_owner(model, scope) == owner and lineno(node) > lineno(wrap) for node, model in frozen)


def _owner(node: ast.expr, scope: Scope) -> str:
    """The model whose parameters a loop variable or expression means."""
    name = dotted(node)
    for binding in scope.bindings.get(name, ()):
        listed = binding.value.func if isinstance(binding.value, ast.Call) and binding.looped else None
        if not isinstance(listed, ast.Attribute) or listed.attr not in ("parameters", "named_parameters"):
            continue
        if _around(binding.statement, node, scope):
            return _base(dotted(listed.value), scope)
    return _base(name, scope)


def _around(loop: ast.AST, node: ast.AST, scope: Scope) -> bool:
    return any(outer is loop for outer, _ in scope.file.enclosing(node))


def _base(name: str, scope: Scope) -> str:
    """`model.module` of `model.module.backbone`; the first name of the rest."""
    parts = name.split(".")
    return ".".join(parts[: parts.index("module") + 1]) if "module" in parts else parts[0]


SICK = """
import torch.nn as nn
def build(net):
    model = nn.parallel.DistributedDataParallel(net)
    model.module.head = nn.Linear(4, 4)
    return model
"""
HEALTHY = """
import torch.nn as nn
def build(net):
    net.head = nn.Linear(4, 4)
    return nn.parallel.DistributedDataParallel(net)
"""
