"""
DD702 load-without-map-location: every rank loads the checkpoint onto the device that saved it.

What it means    torch.load puts tensors back where they were: on cuda:0 of rank 0, in every process.
Why it hurts     The first GPU holds a copy and a CUDA context for every rank, and runs out of memory.
How we know      torch.load without map_location in a script that runs on several ranks, and its result goes into load_state_dict:
                 here, or in a function that calls this one for it.
What to do       torch.load(path, map_location="cpu"), or this rank's own device.
When it is fine  Checkpoints that were saved from the CPU; a file of its own for each rank; a branch for one process.
Source           torch.load: map_location; PyTorch DDP tutorial: save and load checkpoints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.source_file import (
    Scope,
    SourceFile,
    argument,
    dotted,
    keyword,
    last_word,
    lineno,
    opaque,
)
from distdoctor.lint.alone import runs_alone
from distdoctor.lint.course import starts
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rank_conditions import conditions, on_rank
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import method_calls, names_in, target_names


@rule("DD702", "load-without-map-location", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if program.meaning(call.func, scope.file) != "torch.load" or opaque(call):
                continue
            if argument(call, 1, "map_location") is not None or keyword(call, "mmap") is not None:
                continue
            if not _on_several_ranks(scope, program) or _saved_from_cpu(scope.file, program):
                continue
            if runs_alone(call, scope, program):
                continue
            if _restores(call, scope, program):
                yield Sighting(
                    node=call,
                    scope=scope,
                    title="every rank loads this checkpoint onto the device that saved it",
                    why="without map_location tensors return to the device they were saved from: cuda:0 if rank 0 saved them",
                    change='torch.load(..., map_location="cpu")',
                    edits=(_with_map_location(call, scope),),
                )


_MOST_CALLERS = 2  # from a helper to who restores what it returns


def _on_several_ranks(scope: Scope, program: ParsedFiles) -> bool:
    return any(program.is_distributed(one.file) for one in starts(scope, program))


def _saved_from_cpu(file: SourceFile, program: ParsedFiles) -> bool:
    """Whether what the file saves is moved to the CPU first, by a function of its that saves."""
    savers = [
        scope for scope in file.scopes if any(program.meaning(one.func, file) == "torch.save" for one in scope.calls)
    ]
    return any(method_calls(scope, "cpu") for scope in savers)


def _restores(call: ast.Call, scope: Scope, program: ParsedFiles, steps: int = _MOST_CALLERS) -> bool:
    """Whether what a call returns goes into load_state_dict of a model or optimizer, here or where a caller gets it from here, on
    every rank; schedulers, scalers and parameter groups hold numbers."""
    if on_rank(call, scope, program) is not None or _mapped_elsewhere(call, scope) or _of_this_rank(call, scope):
        return False
    if "param_group" in ast.unparse(scope.file.statement(call)) or _from_memory(call, scope):
        return False
    names = _carriers(call, scope)
    if any(_carries(one, call, names) for other in scope.calls for one in other.args if _loads_state(other)):
        return True
    returned = any(one.value is not None and _carries(one.value, call, names) for one in scope.returns)
    callers = program.callers(scope) if returned and steps else []
    return any(_restores(site.call, site.scope, program, steps - 1) for site in callers)


def _from_memory(call: ast.Call, scope: Scope) -> bool:
    """Whether it reads a buffer of this process and no file: by what made it, or by a question for its kind before."""
    asked = " ".join(ast.unparse(one.test) for one in conditions(call, scope))
    made = [one.value for name in names_in(call) for one in scope.bindings.get(name, ())]
    return "BytesIO" in asked or any("BytesIO" in ast.unparse(one) for one in (call, *made))


def _carriers(call: ast.Call, scope: Scope) -> set[str]:
    """The names that hold tensors of what a call loads: its parts, dicts made of them, items of these in loops."""
    names: set[str] = set()
    loops = (one for one in scope.loops if not isinstance(one, ast.While))
    for one in sorted((*scope.assigns, *loops), key=lineno):
        value = one.iter if isinstance(one, ast.For | ast.AsyncFor) else one.value
        if value is not None and lineno(one) >= lineno(scope.file.statement(call)) and _carries(value, call, names):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            names |= {name for target in targets for name in target_names(target)}
    return names


def _loads_state(call: ast.Call) -> bool:
    named = dotted(call.func).lower()
    return last_word(call.func) == "load_state_dict" and not any(word in named for word in ("sched", "scaler"))


_HANDS_ON = (
    "dict",
    "state",
    "weights",
    "params",
    "items",
    "values",
    "get",
    "pop",
    "copy",
    "clone",
    "next",
    "iter",
    "enumerate",
)


def _carries(node: ast.AST, call: ast.Call, names: set[str]) -> bool:
    """Whether the value of a node holds tensors of what the call loads, by the call itself or by one of these names. What a
    function makes of them is another thing, unless its name says that it is one of their kind."""
    if node is call or dotted(node) in names:
        return True
    if isinstance(node, ast.Call) and not any(word in last_word(node.func).lower() for word in _HANDS_ON):
        return False
    if isinstance(node, ast.Compare | ast.Lambda):
        return False
    return any(_carries(one, call, names) for one in ast.iter_child_nodes(node))


def _of_this_rank(call: ast.Call, scope: Scope) -> bool:
    """Whether the path has the rank in it, as far as this function makes it: each rank loads its own file. Or what it has saved
    itself, into memory."""
    if call.args and any(
        last_word(one.func) == "save" and any(ast.unparse(to) == ast.unparse(call.args[0]) for to in one.args[1:])
        for one in scope.calls
    ):
        return True
    parts, seen = [*call.args, *(one.value for one in call.keywords)], set[str]()
    while parts:
        part = parts.pop()
        if any(word in ast.unparse(part).lower() for word in ("rank", "process_index")):
            return True
        for name in names_in(part) - seen:
            seen.add(name)
            parts += [one.value for one in scope.bindings.get(name, ())]
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
