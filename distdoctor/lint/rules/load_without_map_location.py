"""
DD702 load-without-map-location: every rank loads the checkpoint onto the device that saved it.

What it means    torch.load puts tensors back where they were: on cuda:0 of rank 0, in every process.
Why it hurts     The first GPU holds a copy and a CUDA context for every rank, and runs out of memory.
How we know      torch.load without map_location in a script that runs on several ranks, and its result goes into load_state_dict.
What to do       torch.load(path, map_location="cpu"), or this rank's own device.
When it is fine  Checkpoints that were saved from the CPU.
Source           torch.load: map_location; PyTorch DDP tutorial: save and load checkpoints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.source_file import Scope, argument, dotted, keyword, last_word, opaque, within
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rank_conditions import on_rank
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import names_in


@rule("DD702", "load-without-map-location", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if program.meaning(call.func, scope.file) != "torch.load" or opaque(call):
                continue
            if argument(call, 1, "map_location") is not None or keyword(call, "mmap") is not None:
                continue
            if on_rank(call, scope, program) is None and _on_several_ranks(scope, program) and _restores(call, scope):
                yield Sighting(
                    node=call,
                    scope=scope,
                    title="every rank loads this checkpoint onto the device that saved it",
                    why="without map_location tensors return to the device they were saved from: cuda:0 if rank 0 saved them",
                    change='torch.load(..., map_location="cpu")',
                    edits=(_with_map_location(call, scope),),
                )


def _on_several_ranks(scope: Scope, program: ParsedFiles) -> bool:
    return program.is_distributed(scope.file) or any(
        program.is_distributed(s.scope.file) for s in program.callers(scope)
    )


def _restores(call: ast.Call, scope: Scope) -> bool:
    """Whether what was loaded goes into load_state_dict of a model or optimizer here; schedulers and scalers hold numbers."""
    statement = scope.file.statement(call)
    names = {name for name, bound in scope.bindings.items() if any(one.statement is statement for one in bound)}
    for other in scope.calls:
        if last_word(other.func) != "load_state_dict" or any(
            w in dotted(other.func).lower() for w in ("sched", "scaler")
        ):
            continue
        if within(other, call, scope.file) or names_in(other) & names:
            return not _mapped_elsewhere(call, scope)
    return False


def _mapped_elsewhere(call: ast.Call, scope: Scope) -> bool:
    """The same file is loaded with map_location in another branch: somebody has thought of it."""
    return any(
        ast.unparse(other.args[0]) == ast.unparse(call.args[0]) and keyword(other, "map_location") is not None
        for other in scope.calls
        if other is not call and other.args and call.args and ast.unparse(other.func) == ast.unparse(call.func)
    )


def _with_map_location(call: ast.Call, scope: Scope) -> Edit:
    last = [*call.args, *(one.value for one in call.keywords)][-1] if call.args or call.keywords else call.func
    line, column = last.end_lineno or last.lineno, last.end_col_offset or 0
    return Edit(scope.file.path, line, column, line, column, ', map_location="cpu"')


SICK = """
import torch
import torch.distributed as dist
def resume(model):
    dist.init_process_group("nccl")
    model.load_state_dict(torch.load("m.pt"))
"""
HEALTHY = """
import torch
import torch.distributed as dist
def resume(model):
    dist.init_process_group("nccl")
    model.load_state_dict(torch.load("m.pt", map_location="cpu"))
"""
