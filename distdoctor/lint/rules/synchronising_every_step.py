"""
DD507 synchronising-every-step: the host waits for the device in every step.

What it means    .item(), .cpu(), .tolist(), float() and print of a device tensor block until everything queued before is done.
Why it hurts     The device is idle while the host prepares the next step, in every step, on every rank.
How we know      Such a call on something computed from the loss or the model's output, in every iteration of the training loop.
What to do       Keep the sum on the device (total += loss.detach()) and read it every hundred steps.
When it is fine  Training on the CPU; steps so long that the wait is negligible.
Source           PyTorch performance tuning guide: avoid unnecessary CPU-GPU synchronization.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import NOTE
from distdoctor.diagnosis.source.source_file import FunctionNode, Loop, Scope, dotted
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import names_in, training_loops

_READS = ("item", "tolist", "cpu", "numpy")
_ON_DEVICE = (".cuda", '"cuda', "'cuda", ".to(device", "nccl")


@rule("DD507", "synchronising-every-step", severity=NOTE)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        if not any(word in scope.file.text for word in _ON_DEVICE):
            continue
        for loop, ends in training_loops(scope):
            if any(program.meaning(call.func, scope.file) == "torch.cuda.synchronize" for call in scope.calls):
                continue  # somebody measures here
            computed = {dotted(end.func.value) for end in ends if isinstance(end.func, ast.Attribute)}
            computed |= {dotted(one) for end in ends for one in _scaled(end)}
            computed = (computed | {name for one in computed for name in _made_from(one, scope)}) - {""}
            reads = [call for call in scope.calls if _reads(call, computed) and _in_every_turn(call, loop, scope)]
            if reads:
                yield _sighting(reads, scope)


def _scaled(end: ast.Call) -> list[ast.expr]:
    """`loss` of `scaler.scale(loss).backward()`."""
    inner = end.func.value if isinstance(end.func, ast.Attribute) else None
    return inner.args if isinstance(inner, ast.Call) else end.args


def _made_from(name: str, scope: Scope) -> set[str]:
    """What is computed from the loss right away: `reduced = reduce(loss)`."""
    bound = scope.bindings.items()
    return {
        other
        for other, ones in bound
        if any(isinstance(b.value, ast.Call) and name in _arguments(b.value) for b in ones)
    }


def _arguments(call: ast.Call) -> set[str]:
    return {dotted(one) for one in call.args}


def _reads(call: ast.Call, computed: set[str]) -> bool:
    """`loss.item()`, `float(loss)`, `print(loss)` for something computed."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READS and not call.args:
        return dotted(call.func.value) in computed or bool(names_in(call.func.value) & computed)
    return (
        isinstance(call.func, ast.Name)
        and call.func.id == "float"
        and bool(call.args)
        and dotted(call.args[0]) in computed
    )


def _in_every_turn(node: ast.AST, loop: Loop, scope: Scope) -> bool:
    for outer, inner in scope.file.enclosing(node):
        if outer is loop:
            return any(inner is one for one in loop.body)
        if isinstance(outer, ast.If | ast.IfExp | ast.Lambda | ast.ExceptHandler | FunctionNode):
            return False
    return False


def _sighting(reads: list[ast.Call], scope: Scope) -> Sighting:
    more = f", and {len(reads) - 1} more such reads in this loop" if len(reads) > 1 else ""
    return Sighting(
        node=reads[0],
        scope=scope,
        title=f"{ast.unparse(reads[0])[:50]} makes the host wait for the device in every step",
        why=f"the value must be computed and copied before the next step can be queued{more}",
        remedy="read-now-and-then",
        evidence={"reads": len(reads)},
    )


SICK = """
import torch
def run(model, data, optimizer):
    model.cuda()
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        print(loss.item())
"""
HEALTHY = """
import torch
def run(model, data, optimizer):
    model.cuda()
    for number, batch in enumerate(data):
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        if number % 100 == 0:
            print(loss.item())
"""
