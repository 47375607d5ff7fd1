"""
DD803 clip-before-unscale: gradients are clipped while they are still scaled.

What it means    GradScaler multiplies the loss, hence the gradients, by up to 65536. A limit of 1.0
                 is then a limit of 1/65536 after unscaling.
Why it hurts     Steps become tiny and vary with the scale; training slows to a crawl and nothing fails.
How we know      clip_grad_norm_ is called between scaler.scale(loss).backward() and scaler.step() without scaler.unscale_().
What to do       Call scaler.unscale_(optimizer) before clip_grad_norm_.
When it is fine  The scaler is known to be disabled.
Source           PyTorch AMP examples: gradient clipping.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, dotted, exclusive, last_word, lineno
from distdoctor.lint.program import SCALER, ParsedFiles
from distdoctor.lint.rule import Sighting, insert_before, rule
from distdoctor.lint.training import method_calls


@rule("DD803", "clip-before-unscale", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        clips = [c for c in scope.calls if program.is_torch(c.func, scope.file, *_CLIPS)]
        for clip in clips:
            step = _scaled_step(clip, scope, program)
            if step is not None:
                yield _sighting(clip, step, scope)


_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


def _scaled_step(clip: ast.Call, scope: Scope, program: ParsedFiles) -> ast.Call | None:
    """The scaler's step after this clip, when a scaled backward stands before and no unscale_ between."""
    for step in method_calls(scope, "step"):
        assert isinstance(step.func, ast.Attribute)
        if len(step.args) != 1 or not _is_scaler(step.func.value, scope, program) or not _both(clip, step, scope):
            continue
        before = [c for c in _scaled_backwards(scope) if _both(c, clip, scope) and not exclusive(c, step, scope.file)]
        unscaled = [c for c in method_calls(scope, "unscale_") if not exclusive(c, clip, scope.file)]
        between = [c for c in unscaled if lineno(c) < lineno(clip)]
        if before and not between:
            return step
    return None


def _both(first: ast.Call, then: ast.Call, scope: Scope) -> bool:
    return lineno(first) < lineno(then) and not exclusive(first, then, scope.file)


def _is_scaler(node: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    return SCALER in program.kinds(node, scope) or "scaler" in last_word(node).lower()


def _scaled_backwards(scope: Scope) -> list[ast.Call]:
    return [call for call in method_calls(scope, "backward") if any(_scales(one) for one in ast.walk(call))]


def _scales(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_word(node.func) == "scale"


def _sighting(clip: ast.Call, step: ast.Call, scope: Scope) -> Sighting:
    assert isinstance(step.func, ast.Attribute)
    scaler, optimizer = dotted(step.func.value), dotted(step.args[0])
    call = f"{scaler}.unscale_({optimizer})"
    return Sighting(
        node=clip,
        scope=scope,
        title="gradients are clipped while they are still scaled",
        why=f"{ast.unparse(step)} on line {lineno(step)} unscales only afterwards, so the limit applies to the scaled norm",
        remedy="unscale-first",
        change=call,
        also=((step, scope, "unscales and steps"),),
        edits=(insert_before(scope.file.statement(clip), scope, call),) if scaler and optimizer else (),
    )


SICK = """
import torch
def step(model, batch, optimizer, scaler):
    scaler.scale(model(batch).sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""
HEALTHY = """
import torch
def step(model, batch, optimizer, scaler):
    scaler.scale(model(batch).sum()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""
