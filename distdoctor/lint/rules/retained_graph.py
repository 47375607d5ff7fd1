"""
DD410 retained-graph: retain_graph=True keeps the graph of every step alive.

What it means    backward frees what it no longer needs. With retain_graph=True nothing is freed until the loss is dropped.
Why it hurts     A step needs more memory; where each step is still linked to the one before, memory grows without end.
How we know      The only backward of a training loop has retain_graph=True, so nothing goes through the graph again.
What to do       Remove it. If backward then complains, a tensor of the previous step is still in the graph: detach it.
When it is fine  Two backward passes through one graph.
Source           torch.Tensor.backward: retain_graph is nearly never needed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.source_file import (
    Loop,
    Scope,
    argument,
    dotted,
    is_constant,
    keyword,
    last_word,
    within,
)
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import training_loops


@rule("DD410", "retained-graph", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for loop, ends in training_loops(scope):
            again = [call for call in scope.calls if last_word(call.func) in ("grad", "backward") and call not in ends]
            if len(ends) == 1 and not again and _retains(ends[0]) and not _of_all_turns(ends[0], loop, scope):
                yield Sighting(
                    node=ends[0],
                    scope=scope,
                    title="retain_graph=True keeps the whole graph of each step, and no second backward uses it",
                    why="this is the only backward of the loop",
                    remedy="let-the-graph-go",
                )


def _of_all_turns(end: ast.Call, loop: Loop, scope: Scope) -> bool:
    """Whether what it begins from was there before the loop, `for loss in losses:`: the other turns may share its graph."""
    receiver = end.func.value if isinstance(end.func, ast.Attribute) else None
    given = end.args[0] if end.args and last_word(receiver) == "autograd" else receiver
    bound = scope.bindings.get(dotted(given), [])
    return bool(dotted(given)) and all(
        one.statement is loop or not within(loop, one.statement, scope.file) for one in bound
    )


def _retains(call: ast.Call) -> bool:
    return is_constant(keyword(call, "retain_graph") or argument(call, 1, "retain_graph"), True)


SICK = """
import torch
def run(model, data, optimizer):
    for batch in data:
        optimizer.zero_grad()
        model(batch).sum().backward(retain_graph=True)
        optimizer.step()
"""
HEALTHY = """
import torch
def run(model, data, optimizer):
    for batch in data:
        optimizer.zero_grad()
        one, other = model(batch)
        one.backward(retain_graph=True)
        other.backward()
        optimizer.step()
"""
