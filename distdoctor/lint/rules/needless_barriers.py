"""
DD511 needless-barriers: a barrier or a device synchronization in every step that protects nothing.

What it means    DDP's gradient reduction already keeps the ranks in step. A barrier in every step is one more wait.
Why it hurts     Each step is as slow as the slowest rank, and the device goes idle.
How we know      dist.barrier() or torch.cuda.synchronize() in every iteration of a training loop that reads no clock.
What to do       Remove it.
When it is fine  In a time measurement; around files that one rank writes in that step.
Source           torch.distributed.barrier; CUDA semantics: asynchronous execution.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import NOTE
from distdoctor.diagnosis.source.source_file import FunctionNode, Loop, Scope, last_word, lineno, within
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rank_conditions import on_rank
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import training_loops

_CLOCKS = ("time", "perf_counter", "monotonic", "Event", "elapsed_time", "record", "time_ns", "perf_counter_ns")
_WAITS = ("torch.distributed.barrier", "torch.cuda.synchronize")


@rule("DD511", "needless-barriers", severity=NOTE)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for loop, _ in training_loops(scope):
            inside = [call for call in scope.calls if within(loop, call, scope.file)]
            if any(last_word(call.func) in _CLOCKS or on_rank(call, scope, program) for call in inside):
                continue
            waits = [
                c for c in inside if program.meaning(c.func, scope.file) in _WAITS and _in_every_turn(c, loop, scope)
            ]
            if waits and not _measures(loop, scope, program):
                yield Sighting(
                    node=waits[0],
                    scope=scope,
                    title=f"{ast.unparse(waits[0].func)} in every step protects nothing",
                    why="the gradient reduction already keeps the ranks in step",
                    remedy="drop-barriers",
                )


def _measures(loop: Loop, scope: Scope, program: ParsedFiles) -> bool:
    """Whether the function waits for the device and then reads a clock before the loop: a benchmark waits on purpose."""
    before = [call for call in scope.calls if lineno(call) < lineno(loop)]
    waits = [call for call in before if program.meaning(call.func, scope.file) in _WAITS]
    return any(last_word(call.func) in _CLOCKS and lineno(call) > lineno(wait) for wait in waits for call in before)


def _in_every_turn(node: ast.AST, loop: Loop, scope: Scope) -> bool:
    for outer, _ in scope.file.enclosing(node):
        if outer is loop:
            return True
        if isinstance(outer, ast.If | ast.IfExp | FunctionNode):
            return False
    return False


SICK = """
import torch.distributed as dist
def run(model, data, optimizer):
    for batch in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        dist.barrier()
"""
HEALTHY = """
import torch.distributed as dist
def run(model, data, optimizer):
    for batch in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    dist.barrier()
"""
