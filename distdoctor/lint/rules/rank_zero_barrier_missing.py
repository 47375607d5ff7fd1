"""
DD705 rank-zero-barrier-missing: the other ranks read what rank 0 may not have written yet.

What it means    One rank writes a file and all ranks read it, and no collective in between makes the others wait.
Why it hurts     It works until the file system is slow: then a rank reads an old file, half a file, or none.
How we know      torch.save under a condition on the rank, then torch.load of the same path outside it in the same function,
                 and no collective between the two.
What to do       dist.barrier() between writing and reading.
When it is fine  The file existed before the job.
Source           PyTorch DDP tutorial: save and load checkpoints, which has the barrier.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, argument, last_word, lineno
from distdoctor.lint.collectives import COLLECTIVES, issues
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rank_conditions import on_rank
from distdoctor.lint.rule import Sighting, insert_before, rule

_READS = {"save": ("load",), "save_pretrained": ("from_pretrained",)}


@rule("DD705", "rank-zero-barrier-missing", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for write in scope.calls:
            path = _path(write, scope, program, "torch.save", 1)
            condition = on_rank(write, scope, program) if path else None
            if condition is None or condition.leaves:
                continue
            read = _read_after(write, path, condition.statement, scope, program)
            if read is not None:
                yield _sighting(write, read, path, scope)


def _path(call: ast.Call, scope: Scope, program: ParsedFiles, name: str, place: int) -> str:
    if program.meaning(call.func, scope.file) != name:
        return ""
    path = argument(call, place, "f")
    return ast.unparse(path) if path is not None else ""


def _read_after(write: ast.Call, path: str, guard: ast.AST, scope: Scope, program: ParsedFiles) -> ast.Call | None:
    end = getattr(guard, "end_lineno", lineno(guard))
    for read in scope.calls:
        if _path(read, scope, program, "torch.load", 0) != path or lineno(read) <= end:
            continue
        if on_rank(read, scope, program) is not None:
            continue
        met = [one for one in issues(scope, program) if end < lineno(one.way[0][0]) < lineno(read)]
        named = [c for c in scope.calls if end < lineno(c) < lineno(read) and _meets(c)]
        return None if met or named else read
    return None


def _meets(call: ast.Call) -> bool:
    word = last_word(call.func)
    return word in COLLECTIVES or any(part in word for part in ("barrier", "synchronize", "wait"))


def _sighting(write: ast.Call, read: ast.Call, path: str, scope: Scope) -> Sighting:
    knows_dist = scope.file.imports.get("dist") == "torch.distributed"
    return Sighting(
        node=read,
        scope=scope,
        title=f"the ranks read {path[:60]} without waiting for the rank that writes it",
        why=f"line {lineno(write)} writes it on one rank, and no collective is in between",
        change="dist.barrier()",
        also=((write, scope, "writes it on one rank"),),
        edits=(insert_before(scope.file.statement(read), scope, "dist.barrier()"),) if knows_dist else (),
    )


SICK = """
import torch
import torch.distributed as dist
def run(model, rank):
    if rank == 0:
        torch.save(model, "m.pt")
    return torch.load("m.pt")
"""
HEALTHY = """
import torch
import torch.distributed as dist
def run(model, rank):
    if rank == 0:
        torch.save(model, "m.pt")
    dist.barrier()
    return torch.load("m.pt")
"""
