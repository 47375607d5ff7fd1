"""
DD703 every-rank-writes: all ranks write the same file.

What it means    torch.save of a replicated model runs on every rank, to one path.
Why it hurts     The writes race: the file is torn, or comes from a rank that was interrupted.
How we know      What is saved comes from a DDP model, the path does not contain the rank, and neither the call nor any caller
                 is under a condition on the rank.
What to do       Save on rank 0 only: if dist.get_rank() == 0.
When it is fine  Each rank has its own path, or its own local disk; one host alone.
Source           PyTorch DDP tutorial: save and load checkpoints.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.diagnosis.finding import NOTE, POSSIBLE, WARNING
from distdoctor.diagnosis.source.rank_words import names_main
from distdoctor.diagnosis.source.source_file import Scope, argument, dotted, last_word
from distdoctor.lint.alone import runs_alone
from distdoctor.lint.program import DDP, ParsedFiles, is_key
from distdoctor.lint.rank_conditions import conditions, depends_on_rank, is_rank, mentions_rank
from distdoctor.lint.rule import Sighting, rule

_RANK_IN_JOB = re.compile(r"""["']RANK["']|\bget_rank\(|\bget_global_rank\(""")
_OF_A_HOST = ("host", "node", "local", "tmp", "scratch")  # a path that is each host's own


@rule("DD703", "every-rank-writes", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if program.meaning(call.func, scope.file) != "torch.save" or not call.args:
                continue
            path = argument(call, 1, "f")
            if path is None or mentions_rank(path, scope, program) or not _of_ddp(call.args[0], scope, program):
                continue
            hosts = _by_the_host(call, scope, program, 3)
            if hosts is not None and not any(word in ast.unparse(path).lower() for word in _OF_A_HOST):
                yield _each_host(call, path, scope, *hosts)
            elif _on_every_rank(call, scope, program, 3) and not runs_alone(call, scope, program):
                yield Sighting(
                    node=call,
                    scope=scope,
                    title=f"every rank writes {ast.unparse(path)[:60]}",
                    why="nothing here or in the callers restricts the save to one rank, and the path is the same on all ranks",
                    change="if dist.get_rank() == 0: torch.save(...)",
                )


def _each_host(call: ast.Call, path: ast.expr, scope: Scope, test: ast.expr, where: Scope) -> Sighting:
    written = ast.unparse(path)[:60]
    return Sighting(
        node=call,
        scope=scope,
        title=f"the first rank of each host writes {written}: hosts that share the folder overwrite it",
        why=f"`{ast.unparse(test)[:60]}` is true once on each host, and the path is the same on all of them",
        change="if dist.get_rank() == 0: torch.save(...), where hosts share the folder",
        also=((test, where, "lets one rank of each host through"),),
        severity=NOTE,
        confidence=POSSIBLE,
    )


def _by_the_host(node: ast.AST, scope: Scope, program: ParsedFiles, steps: int) -> tuple[ast.expr, Scope] | None:
    """The condition on the rank within the host that stands before a node on every way to it, and none on the rank in the job."""
    asked = [one for one in conditions(node, scope) if _may_be_on_rank(one.test, scope, program)]
    if asked:
        known = _RANK_IN_JOB.search(scope.file.text) is not None
        own = [one for one in asked if not one.negated and _is_on_host_alone(one.test, scope, program)]
        return (own[0].test, scope) if known and len(own) == len(asked) else None
    callers = program.callers(scope) if steps else []
    found = [_by_the_host(site.call, site.scope, program, steps - 1) for site in callers]
    return found[0] if found and None not in found else None


def _is_on_host_alone(test: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    """Whether a condition asks for the rank within the host, as the environment gives it, and for no other."""
    ranks = [one for one in ast.walk(test) if is_rank(one, scope, program)]
    if not ranks or not all(_is_within_host(one, scope, program) for one in ranks):
        return False
    return depends_on_rank(test, scope, program) and not any(names_main(last_word(one)) for one in ast.walk(test))


def _is_within_host(node: ast.AST, scope: Scope, program: ParsedFiles, steps: int = 2) -> bool:
    """Whether a value is LOCAL_RANK: people call the rank in the job `local_rank`, too."""
    if isinstance(node, ast.Subscript):
        return is_key(node.slice, "LOCAL_RANK")
    if isinstance(node, ast.Call):
        word = last_word(node.func)
        given = node.args[0] if node.args else None
        if word == "int" and given is not None:
            return _is_within_host(given, scope, program, steps)
        return word in ("get_local_rank", "get_node_local_rank") or is_key(given, "LOCAL_RANK")
    bound = program.bindings(dotted(node), scope) if steps else []
    return bool(bound) and all(_is_within_host(one.value, where, program, steps - 1) for one, where in bound)


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
