"""
DD703 every-rank-writes: all ranks write the same file.

What it means    torch.save of a replicated model runs on every rank, to one path.
Why it hurts     The writes race: the file is torn, or comes from a rank that was interrupted.
How we know      What is saved comes from a DDP model, the path does not contain the rank, and neither the call nor any caller
                 is under a condition on the rank.
What to do       Save on rank 0 only: if dist.get_rank() == 0.
When it is fine  Each rank has its own path, or its own local disk.
Source           PyTorch DDP tutorial: save and load checkpoints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.source_file import Scope, argument, dotted
from distdoctor.lint.program import DDP, ParsedFiles
from distdoctor.lint.rank_conditions import conditions, mentions_rank
from distdoctor.lint.rule import Sighting, rule


@rule("DD703", "every-rank-writes", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if program.meaning(call.func, scope.file) != "torch.save" or not call.args:
                continue
            path = argument(call, 1, "f")
            if path is None or mentions_rank(path, scope, program) or not _of_ddp(call.args[0], scope, program):
                continue
            if _on_every_rank(call, scope, program, 3):
                yield Sighting(
                    node=call,
                    scope=scope,
                    title=f"every rank writes {ast.unparse(path)[:60]}",
                    why="nothing here or in the callers restricts the save to one rank, and the path is the same on all ranks",
                    change="if dist.get_rank() == 0: torch.save(...)",
                )


def _of_ddp(saved: ast.expr, scope: Scope, program: ParsedFiles, steps: int = 2) -> bool:
    for one in ast.walk(saved):
        if not isinstance(one, ast.Name | ast.Attribute):
            continue
        owner = one.value if isinstance(one, ast.Attribute) and one.attr == "module" else one
        if program.kinds(owner, scope) == {DDP}:
            return True
        if steps and isinstance(one, ast.Name):
            bound = program.bindings(dotted(one), scope)
            if any(_of_ddp(b.value, where, program, steps - 1) for b, where in bound if not b.looped and b.item < 0):
                return True
    return False


def _on_every_rank(node: ast.AST, scope: Scope, program: ParsedFiles, steps: int) -> bool:
    """Whether nothing that might be a condition on the rank stands before it, here or in any caller."""
    if any(_may_be_on_rank(one.test, scope, program) for one in conditions(node, scope)):
        return False
    callers = program.callers(scope)
    if not callers:
        return not scope.class_name or scope.name == "__init__"
    return steps > 0 and all(_on_every_rank(site.call, site.scope, program, steps - 1) for site in callers)


def _may_be_on_rank(test: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    text = ast.unparse(test).lower()
    words = (
        "rank",
        "main",
        "master",
        "primary",
        "save",
        "zero",
        "chief",
        "gpu",
        "device",
        "local",
        "output_dir",
        "process",
    )
    return mentions_rank(test, scope, program) or any(word in text for word in words)


SICK = """
import torch
def run(net):
    model = torch.nn.parallel.DistributedDataParallel(net)
    torch.save(model.module.state_dict(), "m.pt")
"""
HEALTHY = """
import torch
def run(net, rank):
    model = torch.nn.parallel.DistributedDataParallel(net)
    if rank == 0:
        torch.save(model.module.state_dict(), "m.pt")
"""
