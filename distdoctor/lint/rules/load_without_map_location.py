"""
DD702 load-without-map-location: every rank loads the checkpoint onto the device that saved it.

What it means    torch.load puts tensors back where they were: on cuda:0 of rank 0, in every process.
Why it hurts     The first GPU holds one copy per rank and a context each, and runs out of memory.
How we know      torch.load without map_location in a script of several ranks, whose result goes into load_state_dict.
What to do       torch.load(path, map_location="cpu"), or this rank's own device.
When it is fine  Checkpoints that were saved from the CPU.
Source           torch.load: map_location; PyTorch DDP tutorial: save and load checkpoints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.lint.program import Program
from distdoctor.lint.rank_conditions import on_rank
from distdoctor.lint.rule import Edit, Sighting, rule
from distdoctor.lint.source_file import Scope, argument, keyword, last_word, opaque, within
from distdoctor.lint.training import flowing_from, names_in


@rule("DD702", "load-without-map-location", severity=WARNING)
def see(program: Program) -> Iterator[Sighting]:
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
                    why="torch.load without map_location restores tensors to their old device, cuda:0 for what rank 0 saved",
                    change=f'torch.load(..., map_location="cpu")',
                    edits=(_with_map_location(call, scope),),
                )


def _on_several_ranks(scope: Scope, program: Program) -> bool:
    return program.is_distributed(scope.file) or any(program.is_distributed(s.scope.file) for s in program.callers(scope))


def _restores(call: ast.Call, scope: Scope) -> bool:
    """Whether what was loaded goes into load_state_dict here."""
    names = flowing_from(call, scope)
    for other in scope.calls:
        if last_word(other.func) == "load_state_dict" and (within(other, call, scope.file) or names_in(other) & names):
            return True
    return False


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
