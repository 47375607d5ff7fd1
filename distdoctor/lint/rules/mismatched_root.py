"""
DD106 mismatched-root: every rank names itself as the root of a collective.

What it means    src of a broadcast or scatter, dst of a reduce or gather, is one rank, and all ranks name the same one.
Why it hurts     With src=dist.get_rank() every rank sends and nobody receives: each keeps its own values, or the job hangs.
How we know      The root is this process's own rank, as get_rank() or the environment gives it, and all ranks make the call.
What to do       Name one rank: src=0.
When it is fine  Under a condition on the rank, where one rank alone gets there; in a group of one.
Source           torch.distributed.broadcast: src is the source rank, the same on all ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.rank_words import RANK_VARIABLES
from distdoctor.diagnosis.source.source_file import Scope, argument, dotted, exclusive, last_word
from distdoctor.lint.collectives import operation
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rank_conditions import on_rank
from distdoctor.lint.rule import Sighting, replace_node, rule

_ROOTS = {  # operation: the place of its root, and its name
    "broadcast": (1, "src"),
    "broadcast_object_list": (1, "src"),
    "scatter": (2, "src"),
    "scatter_object_list": (2, "src"),
    "reduce": (1, "dst"),
    "gather": (2, "dst"),
    "gather_object": (2, "dst"),
}


@rule("DD106", "mismatched-root", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        for call in scope.calls:
            if last_word(call.func) not in _ROOTS:
                continue
            word = operation(call, scope, program)
            if not word or not program.meaning(call.func, scope.file).startswith("torch.distributed."):
                continue
            place, name = _ROOTS[word]
            root = argument(call, place, name)
            if root is None or not is_own_rank(root, scope, program) or on_rank(call, scope, program) is not None:
                continue
            if any(last_word(other.func) == word and exclusive(other, call, scope.file) for other in scope.calls):
                continue  # who holds it names itself, the others name the one who does
            yield Sighting(
                node=call,
                scope=scope,
                title=f"every rank names itself as {name} of {word}",
                why=f"`{ast.unparse(root)}` is the number of this process, another one on each rank; all have to name the same",
                change=f"{name}=0",
                edits=(replace_node(root, scope, "0"),),
            )


def is_own_rank(node: ast.expr, scope: Scope, program: ParsedFiles, steps: int = 4) -> bool:
    """Whether a value is the number of this process, by where it comes from and not by its name."""
    if steps == 0:
        return False
    if isinstance(node, ast.Subscript):
        return dotted(node.value) == "os.environ" and _is_variable(node.slice)
    if isinstance(node, ast.Call):
        name = program.meaning(node.func, scope.file)
        if name == "int" and len(node.args) == 1:
            return is_own_rank(node.args[0], scope, program, steps - 1)
        if name in ("os.getenv", "os.environ.get"):
            return bool(node.args) and _is_variable(node.args[0])
        if name == "torch.distributed.get_rank":
            return not node.args and not node.keywords
        target = program.target(node, scope)
        values = [one.value for one in target.returns if one.value is not None] if target is not None else []
        return (
            target is not None
            and bool(values)
            and not isinstance(values[-1], ast.Constant)
            and all(isinstance(one, ast.Constant) or is_own_rank(one, target, program, steps - 1) for one in values)
        )
    bound = program.bindings(dotted(node), scope) if dotted(node) else []
    return bool(bound) and all(
        one.item < 0 and not one.looped and is_own_rank(one.value, where, program, steps - 1) for one, where in bound
    )


def _is_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in RANK_VARIABLES and node.value != "LOCAL_RANK"


SICK = """
import torch.distributed as dist
def share(values):
    rank = dist.get_rank()
    dist.broadcast(values, src=rank)
"""
HEALTHY = """
import torch.distributed as dist
def share(values):
    for rank in range(dist.get_world_size()):
        dist.broadcast(values[rank], src=rank)
"""
