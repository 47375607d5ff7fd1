"""
DD803 clip-before-unscale: gradients are clipped while they are still scaled.

What it means    GradScaler multiplies the loss, hence the gradients, by up to 65536. A limit of 1.0
                 is then a limit of 1/65536 after unscaling.
Why it hurts     Steps become tiny and vary with the scale; training slows to a crawl and nothing fails.
How we know      clip_grad_norm_, or a function that was handed in to clip, is called between scaler.scale(loss).backward() and
                 scaler.step() without scaler.unscale_(), in one function, or in several that one calls in this order.
What to do       Call scaler.unscale_(optimizer) before clip_grad_norm_.
When it is fine  The scaler is known to be disabled; a limit that is multiplied by the scale.
Source           PyTorch AMP examples: gradient clipping.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, dotted, exclusive, last_word, lineno
from distdoctor.lint.course import Course, Event, starts
from distdoctor.lint.program import SCALER, ParsedFiles
from distdoctor.lint.rule import Sighting, insert_before, rule
from distdoctor.lint.training import method_calls


@rule("DD803", "clip-before-unscale", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    course = Course(program, lambda call, scope: _matters(call, scope, program))
    for scope in program.scopes:
        clips = [c for c in scope.calls if _is_clip(c, scope, program)]
        for clip in clips:
            if "scale" in ast.unparse(clip):
                continue
            steps = _here(clip, scope, program) or _over_functions(clip, scope, course)
            if steps is not None:
                yield _sighting(clip, scope, *steps)


_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
_UNSCALED = ("unscale", "get_scale")  # by the scaler, or by hand


def _here(clip: ast.Call, scope: Scope, program: ParsedFiles) -> tuple[Event, ...] | None:
    """The scaler's step after this clip, when a scaled backward stands before and no unscale_ between."""
    for step in scope.calls:
        if not _is_scaled_step(step, scope, program) or not _both(clip, step, scope):
            continue
        before = [c for c in _scaled_backwards(scope) if _both(c, clip, scope) and not exclusive(c, step, scope.file)]
        unscaled = [c for c in method_calls(scope, "unscale_") if not exclusive(c, clip, scope.file)]
        between = [c for c in unscaled if lineno(c) < lineno(clip)]
        if before and not between:
            return (Event(((step, scope),)),)
    return None


def _matters(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    step, end = _is_scaled_step(call, scope, program), _is_scaled_backward(call, scope)
    return step or end or _is_clip(call, scope, program)


def _is_clip(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """torch's own, or a function that the program was handed under such a name: `self.grad_clip_fn(model.parameters())`."""
    if program.is_torch(call.func, scope.file, *_CLIPS):
        return True
    word = last_word(call.func).lower()
    if "clip" not in word or "grad" not in word or program.target(call, scope) is not None:
        return False
    handed = program.bindings(dotted(call.func), scope) or dotted(call.func) in scope.parameters
    return bool(handed) and any(last_word(one.func) == "parameters" for one in _calls_in(call.args))


def _calls_in(nodes: list[ast.expr]) -> Iterator[ast.Call]:
    return (one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call))


def _over_functions(clip: ast.Call, scope: Scope, course: Course) -> tuple[Event, ...] | None:
    """The scaler's step and the scaled backward around a clip, where one function calls those that do these."""
    for start in starts(scope, course.program):
        events = course.of(start)
        steps = [one for one in events if _is_scaled_step(one.call, one.scope, course.program)]
        ends = [one for one in events if _is_scaled_backward(one.call, one.scope)] if steps else []
        for here in (one for one in events if one.call is clip):
            for step in (one for one in steps if here.before(one)):
                for end in (one for one in ends if one.before(here) and one.before(step)):
                    files = here.files | step.files | end.files
                    if not any(word in file.text for file in files for word in _UNSCALED):
                        return step, end
    return None


def _both(first: ast.Call, then: ast.Call, scope: Scope) -> bool:
    return lineno(first) < lineno(then) and not exclusive(first, then, scope.file)


def _is_scaled_step(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """`scaler.step(optimizer)`"""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step" or len(call.args) != 1:
        return False
    scaler = call.func.value
    return SCALER in program.kinds(scaler, scope) or "scaler" in last_word(scaler).lower()


def _scaled_backwards(scope: Scope) -> list[ast.Call]:
    return [call for call in scope.calls if _is_scaled_backward(call, scope)]


def _is_scaled_backward(call: ast.Call, scope: Scope) -> bool:
    """`scaler.scale(loss).backward()`, the scaled loss perhaps by a name."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return False
    named = [one.value for one in scope.bindings.get(dotted(call.func.value), ()) if lineno(one.value) < lineno(call)]
    return any(_scales(one) for one in ast.walk(call)) or bool(named and _scales(named[-1]))


def _scales(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_word(node.func) == "scale"


def _sighting(clip: ast.Call, scope: Scope, step: Event, end: Event | None = None) -> Sighting:
    """`end`: the scaled backward, where it stands in another function."""
    scaler, optimizer = dotted(step.receiver), dotted(step.call.args[0])
    call = f"{scaler}.unscale_({optimizer})"
    fixable = scaler and optimizer and step.scope is scope and end is None
    also = [(step.call, step.scope, "unscales and steps")]
    also += [(end.call, end.scope, "computes scaled gradients")] if end else []
    return Sighting(
        node=clip,
        scope=scope,
        title="gradients are clipped while they are still scaled",
        why=f"{ast.unparse(step.call)} on line {lineno(step.call)}"
        + (f" of {step.scope.path}" if step.scope.file is not scope.file else "")
        + " unscales only afterwards, so the limit applies to the scaled norm",
        remedy="unscale-first",
        change=call,
        also=tuple(also),
        edits=(insert_before(scope.file.statement(clip), scope, call),) if fixable else (),
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
