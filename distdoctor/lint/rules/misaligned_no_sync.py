"""
DD207 misaligned-no-sync: no_sync around the wrong part, around everything, or around the micro-batch before the step.

What it means    DDP decides in its forward whether the backward will reduce. no_sync around backward alone changes nothing;
                 around every micro-batch it leaves the gradients unreduced.
Why it hurts     The first reduces the gradients of every micro-batch; the others let the replicas drift apart.
How we know      The block holds a backward and no call of the model; or the only backward of a loop that steps is inside; or the
                 conditions on the loop's counter, played for its first turns, choose no_sync in every turn that steps.
What to do       Put the forward and backward of every micro-batch but the last inside no_sync.
When it is fine  FSDP, where the backward decides; gradients that the function reduces itself.
Source           torch.nn.parallel.DistributedDataParallel.no_sync: the forward pass should be included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR, WARNING
from distdoctor.diagnosis.source.source_file import Loop, Scope, dotted, last_word, within
from distdoctor.lint.micro_steps import counter_of, holds, modulus_of, turns
from distdoctor.lint.program import DDP, OPTIMIZER, SCALER, ParsedFiles
from distdoctor.lint.rank_conditions import Condition, conditions
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import backwards, method_calls


@rule("DD207", "misaligned-no-sync", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        yield from _out_of_phase(scope, program)
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
            elif (
                len(ends) == len(backwards(scope))
                and _steps_in_same_loop(block, scope)
                and not _by_hand(scope, program)
            ):
                yield Sighting(
                    node=block,
                    scope=scope,
                    title="no micro-batch is synchronized: every backward of this loop is under no_sync",
                    why="the optimizer steps with gradients that were never averaged",
                    remedy="align-no-sync",
                    severity=ERROR,
                )


def _out_of_phase(scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    """`no_sync() if i % n != 0` beside a step `if (i + 1) % n == 0`: the micro-batch that steps is not reduced."""
    for attribute in scope.file.attributes if "no_sync" in scope.file.text else ():
        if attribute.attr != "no_sync" or scope.file.scope_of[attribute] is not scope:
            continue
        if program.kinds(attribute.value, scope) != {DDP}:
            continue
        for loop in scope.file.loops_around(attribute):
            step = _unreduced_step(attribute, loop, scope, program)
            if step is not None:
                yield Sighting(
                    node=attribute,
                    scope=scope,
                    title="the micro-batch before each optimizer step runs under no_sync, so the gradients are never averaged",
                    why="counting the turns of the loop, no_sync is chosen in every turn that steps",
                    remedy="align-no-sync",
                    severity=ERROR,
                    also=((step, scope, "steps in the same turn"),),
                )
                break


def _unreduced_step(attribute: ast.Attribute, loop: Loop, scope: Scope, program: ParsedFiles) -> ast.Call | None:
    """The first step of a loop that happens under no_sync alone, in each turn in which it happens."""
    if not counter_of(loop) or _by_hand(scope, program):
        return None
    unsynced = _inside(attribute, loop, scope)
    for step in method_calls(scope, "step"):
        stepping = _inside(step, loop, scope) if within(loop, step, scope.file) else []
        modulus = modulus_of([one.test for one in (*unsynced, *stepping)], scope)
        if not stepping or not modulus or not _is_of_optimizer(step, scope, program):
            continue
        for played in turns(loop, modulus, scope):
            steps = [turn for turn in played if holds(stepping, turn, scope)]
            unknown = any(holds(stepping, turn, scope) is None for turn in played)
            if unknown or not steps or len(steps) == len(played) or not all(holds(unsynced, t, scope) for t in steps):
                break
        else:
            return step
    return None


def _is_of_optimizer(step: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    assert isinstance(step.func, ast.Attribute)
    return bool(program.kinds(step.func.value, scope) & {OPTIMIZER, SCALER}) or "opt" in dotted(step.func.value)


def _inside(node: ast.AST, loop: Loop, scope: Scope) -> list[Condition]:
    """The conditions of a node that stand in the loop's body, nearer than the loop."""
    return [one for one in conditions(node, scope) if within(loop, one.statement, scope.file)]


def _without_sync(block: ast.With | ast.AsyncWith, scope: Scope, program: ParsedFiles) -> str:
    """The DDP model of `with model.no_sync():`."""
    for one in block.items:
        call = one.context_expr
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "no_sync":
            return dotted(call.func.value) if program.kinds(call.func.value, scope) == {DDP} else ""
    return ""


def _by_hand(scope: Scope, program: ParsedFiles) -> bool:
    """Whether the function, or one that it calls, reduces gradients itself."""
    inside = [scope, *program.reached(scope, 2)]
    calls = (call for where in inside for call in where.calls)
    return any("reduce" in last_word(call.func) and "grad" in ast.unparse(call) for call in calls)


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
