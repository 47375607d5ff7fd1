"""
DD305 uneven-shards: some ranks get a batch more than others.

What it means    The samples are dealt out by hand, every Nth one to a rank. Where their number does not divide by the number of
                 ranks, some get one more, and that may be a batch of its own.
Why it hurts     The ranks that have the batch wait in its collective for the others, which have left the loop.
How we know      A loader's sampler or dataset is made of range(rank, len(data), world_size), with nothing that pads or cuts
                 it, and each turn of a loop over it issues a collective, or is a backward of DDP.
What to do       Shard the data with DistributedSampler (it pads or drops), cut the shares to len(data) // world_size, or wrap
                 the loop in join.
When it is fine  The number of samples divides by the number of ranks, or the last batches of all ranks are partial.
Source           torch.distributed.algorithms.Join; torch.utils.data.distributed.DistributedSampler.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import POSSIBLE, WARNING
from distdoctor.diagnosis.source.prepared_schedules import bound_before
from distdoctor.diagnosis.source.rank_words import names_global_rank, names_world
from distdoctor.diagnosis.source.source_file import Loop, Scope, argument, dotted, last_word, within
from distdoctor.lint.collectives import MAKES_GROUP, calls_in, issues
from distdoctor.lint.program import DDP, LOADER, ParsedFiles
from distdoctor.lint.rank_conditions import conditions
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.training import trains

_STEPS = 4  # through names
_BOUNDED = ("zip", "islice", "cycle")  # loops that may end before the loader does, or never


@rule("DD305", "uneven-shards", severity=WARNING)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    told: set[ast.AST] = set()
    for scope in program.scopes:
        for loop in scope.loops:
            dealt = _dealt_out(loop, scope, program)
            met = _each_turn(loop, scope, program) if dealt is not None and dealt[0] not in told else ""
            if dealt is not None and met:
                told.add(dealt[0])
                yield _sighting(*dealt, loop, scope, met)


def _sighting(share: ast.Call, where: Scope, loop: Loop, scope: Scope, met: str) -> Sighting:
    return Sighting(
        node=share,
        scope=where,
        title=f"ranks may get different numbers of batches: nothing makes {ast.unparse(share.args[1])} divide by that of ranks",
        why=f"`{ast.unparse(share)}` deals out every Nth sample, and each turn of the loop {met}: the ranks with one batch "
        "more wait for the others",
        remedy="even-shards",
        also=((loop, scope, met),),
        confidence=POSSIBLE,
    )


def _dealt_out(loop: Loop, scope: Scope, program: ParsedFiles) -> tuple[ast.Call, Scope] | None:
    """The range that deals out the samples of the loop's loader by hand."""
    if isinstance(loop, ast.While) or any(isinstance(one, ast.Break) for one in ast.walk(loop)):
        return None
    iterated = loop.iter
    while isinstance(iterated, ast.Call) and iterated.args and not program.kind_of_call(iterated, scope.file):
        if last_word(iterated.func) in _BOUNDED:
            return None
        iterated = iterated.args[0]
    made = [one for one in program.made(iterated, scope) if one.kind == LOADER]
    if len(made) != 1:
        return None
    loader, where = made[0].call, made[0].scope
    given = argument(loader, 3, "sampler") or argument(loader, 0, "dataset")
    return _share(given, where, program, _STEPS) if given is not None else None


def _share(node: ast.expr, scope: Scope, program: ParsedFiles, steps: int) -> tuple[ast.Call, Scope] | None:
    """`range(rank, len(data), world_size)`, given to a sampler or a Subset."""
    if isinstance(node, ast.Call):
        if last_word(node.func) in ("range", "arange"):
            return (node, scope) if _is_every_nth(node, scope, program) else None
        if last_word(node.func) in ("Subset", "SubsetRandomSampler", "list", "tolist") and steps:
            inner = node.args[-1] if node.args else getattr(node.func, "value", None)
            return _share(inner, scope, program, steps - 1) if inner is not None else None
        return None
    bound = bound_before(dotted(node), node, scope) if steps else None
    if bound is None or bound.looped or bound.item >= 0 or isinstance(bound.statement, ast.AugAssign):
        return None
    filled = any(dotted(call.func) in (f"{bound.name}.extend", f"{bound.name}.append") for call in scope.calls)
    return None if filled else _share(bound.value, scope, program, steps - 1)


def _is_every_nth(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """`range(rank, len(data), world_size)`."""
    if len(call.args) != 3:
        return False
    first, end, step = (_meant(one, scope) for one in call.args)
    whole = isinstance(end, ast.Call) and dotted(end.func) == "len"
    return whole and names_global_rank(_word(first)) and names_world(_word(step))


def _meant(node: ast.expr, scope: Scope) -> ast.expr:
    bound = bound_before(dotted(node), node, scope)
    return bound.value if bound is not None and isinstance(bound.value, ast.Call) and bound.item < 0 else node


def _word(node: ast.expr) -> str:
    return last_word(node.func if isinstance(node, ast.Call) else node)


def _each_turn(loop: Loop, scope: Scope, program: ParsedFiles) -> str:
    """What all ranks do together in each turn of a loop; "" for nothing, or inside join."""
    around = [outer for outer, _ in scope.file.enclosing(loop) if isinstance(outer, ast.With)]
    if any(
        last_word(getattr(item.context_expr, "func", None)) in ("join", "Join") for one in around for item in one.items
    ):
        return ""
    for issue in issues(scope, program, calls_in([loop], scope)):
        call = issue.way[0][0]
        asked = any(within(loop, one.statement, scope.file) for one in conditions(call, scope))
        if issue.operation not in MAKES_GROUP and not asked:
            return f"issues {issue.operation}"
    wraps = any(program.kind_of_call(call, scope.file) == DDP for one in scope.file.scopes for call in one.calls)
    return "averages gradients" if wraps and trains(loop, scope, program) else ""


SICK = """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, SubsetRandomSampler
def loader_of(data):
    indices = list(range(dist.get_rank(), len(data), dist.get_world_size()))
    return DataLoader(data, sampler=SubsetRandomSampler(indices))
def evaluate(data, score):
    loader = loader_of(data)
    for batch in loader:
        found = score(batch)
        dist.all_reduce(found)
"""
HEALTHY = """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, SubsetRandomSampler
def loader_of(data):
    indices = list(range(dist.get_rank(), len(data), dist.get_world_size()))
    return DataLoader(data, sampler=SubsetRandomSampler(indices))
def evaluate(data, score):
    loader = loader_of(data)
    total = 0
    for batch in loader:
        total = total + score(batch)
    dist.all_reduce(total)
"""
