"""
DD207 misaligned-no-sync: no_sync around the wrong part, around everything, or around the micro-batch before the step.

What it means    DDP decides in its forward whether the backward will reduce. no_sync around backward alone changes nothing;
                 around every micro-batch it leaves the gradients unreduced.
Why it hurts     The first reduces the gradients of every micro-batch; the others let the replicas drift apart.
How we know      The block, whose context may have been chosen before, holds a backward and no call of the model; or the only
                 backward of a loop that steps is inside; or the conditions on the loop's counter, played for its first turns,
                 choose no_sync in every turn that steps, here or in a function that the turn calls.
What to do       Put the forward and backward of every micro-batch but the last inside no_sync.
When it is fine  FSDP, where the backward decides; gradients that the function reduces itself.
Source           torch.nn.parallel.DistributedDataParallel.no_sync: the forward pass should be included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR, WARNING
from distdoctor.diagnosis.source.source_file import Loop, Scope, dotted, last_word, within
from distdoctor.lint.micro_steps import as_called, counter_of, holds, modulus_of, turns, written_out
from distdoctor.lint.program import DDP, OPTIMIZER, SCALER, ParsedFiles
from distdoctor.lint.rank_conditions import Condition, conditions
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import backwards, method_calls


@rule("DD207", "misaligned-no-sync", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        yield from _out_of_phase(scope, program)
        for block in scope.withs if "no_sync" in scope.file.text else ():
            chosen = _without_sync(block, scope, program)
            ends = (
                [end for end in _ends(scope, program) if within(block, end, scope.file)] if chosen is not None else []
            )
            if chosen is None or not ends:
                continue
            if _no_forward(block, scope, program):
                if not _around_more(block, chosen, scope, program):
                    yield Sighting(
                        node=block,
                        scope=scope,
                        title="no_sync is around the backward only and has no effect: the forward decides",
                        why="DDP prepares its reducer in the forward, which is outside this block",
                        remedy="no-sync",
                    )
            elif not chosen and _synchronizes_nothing(block, scope) and not _by_hand(scope, program):
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
                    also=((*step, "steps in the same turn"),),
                )
                break


def _unreduced_step(
    attribute: ast.Attribute, loop: Loop, scope: Scope, program: ParsedFiles
) -> tuple[ast.Call, Scope] | None:
    """The first step of a loop that happens under no_sync alone, in each turn in which it happens."""
    if not counter_of(loop) or _by_hand(scope, program):
        return None
    unsynced = _inside(attribute, loop, scope)
    for step, where, stepping in _steps(loop, scope, program):
        modulus = modulus_of([*unsynced, *stepping])
        if not stepping or not modulus:
            continue
        for played in turns(loop, modulus, scope):
            steps = [turn for turn in played if holds(stepping, turn)]
            unknown = any(holds(stepping, turn) is None for turn in played)
            if unknown or not steps or len(steps) == len(played) or not all(holds(unsynced, t) for t in steps):
                break
        else:
            return step, where
    return None


def _steps(loop: Loop, scope: Scope, program: ParsedFiles) -> Iterator[tuple[ast.Call, Scope, list[Condition]]]:
    """The optimizer steps of a loop's turns, here or in a function that it calls, with the conditions for them in words of
    this scope."""
    calls = [call for call in scope.calls if within(loop, call, scope.file)]
    own = set(method_calls(scope, "step"))
    for call in calls:
        if call in own and _is_of_optimizer(call, scope, program):
            yield call, scope, _inside(call, loop, scope)
        for called in program.targets(call, scope):
            for step in method_calls(called, "step"):
                asked = [as_called(one, called, call, scope) for one in conditions(step, called)]
                if _is_of_optimizer(step, called, program) and None not in asked:
                    there = [written_out(one, scope) for one in asked if one is not None]
                    yield step, called, [*_inside(call, loop, scope), *there]


def _is_of_optimizer(step: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    assert isinstance(step.func, ast.Attribute)
    return bool(program.kinds(step.func.value, scope) & {OPTIMIZER, SCALER}) or "opt" in dotted(step.func.value)


def _inside(node: ast.AST, loop: Loop, scope: Scope) -> list[Condition]:
    """The conditions of a node that stand in the loop's body, nearer than the loop."""
    return [written_out(one, scope) for one in conditions(node, scope) if within(loop, one.statement, scope.file)]


def _without_sync(block: ast.With | ast.AsyncWith, scope: Scope, program: ParsedFiles) -> str | None:
    """ "" for `with model.no_sync():` of a DDP model; the name for `with context:` where a condition chose it before."""
    for one in block.items:
        if _is_no_sync(one.context_expr, scope, program):
            return ""
        name = dotted(one.context_expr.func if isinstance(one.context_expr, ast.Call) else one.context_expr)
        values = [value for binding in scope.bindings.get(name, ()) for value in _either(binding.value)]
        if any(_is_no_sync(value, scope, program) for value in values):
            return name
    return None


def _either(value: ast.expr) -> Iterator[ast.expr]:
    """Both sides of `a if b else c`."""
    if isinstance(value, ast.IfExp):
        yield from _either(value.body)
        yield from _either(value.orelse)
    else:
        yield value


def _is_no_sync(node: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    method = node.func if isinstance(node, ast.Call) else node
    is_method = isinstance(method, ast.Attribute) and method.attr == "no_sync"
    return is_method and program.kinds(method.value, scope) == {DDP}  # type: ignore[attr-defined]


def _ends(scope: Scope, program: ParsedFiles) -> list[ast.Call]:
    """The backwards of a function, and its calls of our functions that do nothing else."""
    helpers = [call for call in scope.calls if (target := program.target(call, scope)) and _only_pulls(target)]
    return [*backwards(scope), *helpers]


def _only_pulls(scope: Scope) -> bool:
    return bool(backwards(scope)) and all(last_word(call.func) in _NO_FORWARD for call in scope.calls)


def _around_more(block: ast.AST, chosen: str, scope: Scope, program: ParsedFiles) -> bool:
    """Whether the forward may be under no_sync as well: by another block of this function, or by one around a call of it."""
    words = {"no_sync", chosen.rpartition(".")[2]} - {""}

    def asks(one: ast.With | ast.AsyncWith) -> bool:
        return any(last_word(part) in words for item in one.items for part in ast.walk(item.context_expr))

    if any(one is not block and asks(one) and not _no_forward(one, scope, program) for one in scope.withs):
        return True
    around = (outer for site in program.callers(scope) for outer, _ in site.scope.file.enclosing(site.call))
    return any(isinstance(one, ast.With | ast.AsyncWith) and asks(one) for one in around)


def _by_hand(scope: Scope, program: ParsedFiles) -> bool:
    """Whether the function, or one that it calls, reduces gradients itself."""
    inside = [scope, *program.reached(scope, 2)]
    calls = (call for where in inside for call in where.calls)
    return any("reduce" in last_word(call.func) and "grad" in ast.unparse(call) for call in calls)


_NO_FORWARD = ("backward", "scale", "scale_loss", "item", "detach", "append", "print")


def _no_forward(block: ast.With | ast.AsyncWith, scope: Scope, program: ParsedFiles) -> bool:
    """Whether everything called in the block is plainly no forward."""
    heads = [one.context_expr for one in block.items]
    inside = [
        c for c in scope.calls if within(block, c, scope.file) and not any(within(h, c, scope.file) for h in heads)
    ]
    ends = _ends(scope, program)
    return all(last_word(call.func) in _NO_FORWARD or any(call is one for one in ends) for call in inside)


def _synchronizes_nothing(block: ast.AST, scope: Scope) -> bool:
    ends = backwards(scope)
    return bool(ends) and all(within(block, end, scope.file) for end in ends) and _steps_in_same_loop(block, scope)


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
