"""
DD207 misaligned-no-sync: no_sync around the wrong part, or around everything.

What it means    DDP decides in its forward whether the backward will reduce. no_sync around backward alone changes nothing;
                 around every micro-batch it leaves the gradients unreduced.
Why it hurts     The first reduces the gradients of every micro-batch; the second lets the replicas drift apart.
How we know      The block holds a backward and no call of the model; or the only backward of a loop that steps is inside.
What to do       Put the forward and backward of every micro-batch but the last inside no_sync.
When it is fine  FSDP, where the backward decides.
Source           torch.nn.parallel.DistributedDataParallel.no_sync: the forward pass should be included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR, WARNING
from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word, within
from distdoctor.lint.program import DDP, ParsedFiles
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import backwards, method_calls


@rule("DD207", "misaligned-no-sync", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for block in scope.withs:
            model = _without_sync(block, scope, program)
            ends = [end for end in backwards(scope) if within(block, end, scope.file)]
            if not model or not ends:
                continue
            if _no_forward(block, model, scope):
                yield Sighting(
                    node=block,
                    scope=scope,
                    title="no_sync is around the backward only and has no effect: the forward decides",
                    why="DDP prepares its reducer in the forward, which is outside this block",
                    remedy="no-sync",
                )
            elif len(ends) == len(backwards(scope)) and _steps_in_same_loop(block, scope):
                yield Sighting(
                    node=block,
                    scope=scope,
                    title="no micro-batch is synchronized: every backward of this loop is under no_sync",
                    why="the optimizer steps with gradients that were never averaged",
                    remedy="align-no-sync",
                    severity=ERROR,
                )


def _without_sync(block: ast.With | ast.AsyncWith, scope: Scope, program: ParsedFiles) -> str:
    """The DDP model of `with model.no_sync():`."""
    for one in block.items:
        call = one.context_expr
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "no_sync":
            return dotted(call.func.value) if program.kinds(call.func.value, scope) == {DDP} else ""
    return ""


def _no_forward(block: ast.With | ast.AsyncWith, model: str, scope: Scope) -> bool:
    """Whether everything called in the block is plainly no forward."""
    heads = [one.context_expr for one in block.items]
    inside = [
        c for c in scope.calls if within(block, c, scope.file) and not any(within(h, c, scope.file) for h in heads)
    ]
    return all(last_word(call.func) in ("backward", "scale", "item", "detach", "append", "print") for call in inside)


def _steps_in_same_loop(block: ast.AST, scope: Scope) -> bool:
    loops = scope.file.loops_around(block)[:1]
    steps = [c for c in method_calls(scope, "step") if "optim" in ast.unparse(c.func).lower() or not c.args]
    unconditional = all(scope.file.loops_around(step)[:1] == loops for step in steps)
    return bool(loops and steps) and unconditional and scope.file.parent.get(block) is loops[0]


SICK = """
import torch
def step(net, batch):
    model = torch.nn.parallel.DistributedDataParallel(net)
    loss = model(batch).sum()
    with model.no_sync():
        loss.backward()
"""
HEALTHY = """
import torch
def step(net, batch, last):
    model = torch.nn.parallel.DistributedDataParallel(net)
    with model.no_sync():
        model(batch).sum().backward()
    model(last).sum().backward()
"""
