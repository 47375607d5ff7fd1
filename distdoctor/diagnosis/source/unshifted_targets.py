"""Losses over all ranks' features whose targets count from 0 on every rank. Pure `ast`.

k = concat_all_gather(k)                     # the rows of rank 0, then those of rank 1, ...
logits = q @ k.T / temperature               # q: the rows of this rank alone
labels = torch.arange(len(q))                # right on rank 0 only
loss = F.cross_entropy(logits, labels)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.call_edits import node_replaced
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

STEPS = 5  # names that are followed back in one function
STORES = 3  # of one name
CALLS = 2  # functions of the user's from the call to the collective
_PRODUCTS = frozenset({"matmul", "mm", "einsum"})
_JOINS = frozenset({"cat", "concat", "concatenate", "vstack"})
_REORDERS = frozenset({"insert", "pop", "roll", "flip"})


@dataclass(frozen=True)
class UnshiftedTargets:
    """The lines that make the targets, gather, multiply and compare; `gathers_until` is the last line of the statement's call.
    `edits`: that add what the rows of the ranks before take."""

    made: SourceLine
    gathered: SourceLine
    product: SourceLine
    loss: SourceLine
    gathers_until: int
    edits: tuple[Edit, ...]


def unshifted_targets(sources: Mapping[str, str]) -> Iterator[UnshiftedTargets]:
    """Every such loss, where one function of the user's holds all of it."""
    if not any("arange" in text and "gather" in text for text in sources.values()):
        return
    program = program_of(sources)
    for scope in program.scopes.values():
        for call in scope.calls:
            found = _of_loss(program, scope, call) if len(call.args) >= 2 else None
            if found is not None:
                yield found


def _of_loss(program: UserProgram, scope: Scope, loss: ast.Call) -> UnshiftedTargets | None:
    targets = _followed(program, scope, loss.args[1], loss.lineno)
    counts = [one for value in targets for one in ast.walk(value) if _is_count(one)]
    if len(counts) != 1 or _asks_for_rank(targets):
        return None
    count = counts[0]
    assert isinstance(count, ast.Call)
    scores = _followed(program, scope, loss.args[0], loss.lineno)
    products = [(one, sides) for value in scores for one in ast.walk(value) if (sides := _sides(one))]
    if len(products) != 1 or _asks_for_rank(scores):
        return None
    product, sides = products[0]
    gathers = [_gather(program, scope, side, getattr(product, "lineno", 0)) for side in sides]
    gather = next((one for one in gathers if one is not None), None)
    if gather is None or all(gathers) or not _keeps_the_order(program, scope, gather):
        return None
    return UnshiftedTargets(
        scope.line(count),
        scope.line(gather),
        scope.line(product),
        scope.line(loss),
        gather.end_lineno or gather.lineno,
        _shifted(scope.path, count),
    )


def _shifted(path: str, count: ast.Call) -> tuple[Edit, ...]:
    if len(count.args) != 1 or dotted(count.func) != "torch.arange":
        return ()
    rows = ast.unparse(count.args[0])
    rows = rows if isinstance(count.args[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({rows})"
    return (node_replaced(path, count, f"({ast.unparse(count)} + {rows} * torch.distributed.get_rank())"),)


def _is_count(node: ast.AST) -> bool:
    """`torch.arange(n)`: from 0 on."""
    return isinstance(node, ast.Call) and last_word(node.func) == "arange" and len(node.args) == 1


def _asks_for_rank(values: list[ast.expr]) -> bool:
    nodes = (node for value in values for node in ast.walk(value))
    return any(isinstance(node, ast.Name | ast.Attribute | ast.Constant) and is_about_rank(node) for node in nodes)


def _sides(node: ast.AST) -> tuple[ast.expr, ...]:
    """The two factors of a product of matrices; () of anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call) or last_word(node.func) not in _PRODUCTS:
        return ()
    given = [one for one in node.args if not isinstance(one, ast.Constant)]
    if len(given) == 1 and isinstance(given[0], ast.List | ast.Tuple):
        given = given[0].elts
    if len(given) == 1 and isinstance(node.func, ast.Attribute):
        given = [node.func.value, *given]  # q.matmul(k)
    return tuple(given) if len(given) == 2 else ()


def _followed(program: UserProgram, scope: Scope, value: ast.expr, line: int) -> list[ast.expr]:
    """An expression, and what the names in it were given before it in the same function."""
    found, waiting = [value], [(value, line)]
    for _ in range(STEPS):
        made = [
            (stored, at)
            for one, before in waiting
            for node in ast.walk(one)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            for stored, at in _stored(program, scope, node.id, before)
        ]
        waiting = [(stored, at) for stored, at in made if stored not in found]
        found += [stored for stored, _ in waiting]
    return found


def _stored(program: UserProgram, scope: Scope, name: str, before: int) -> list[tuple[ast.expr, int]]:
    """(value, line) of what a variable was given before a line in this function, the last ones: some may be under a condition."""
    stores = [
        (value, getattr(statement, "lineno", 0))
        for statement, value in program.stores(name, scope)
        if program.scope_of(statement) is scope and getattr(statement, "lineno", 0) < before
    ]
    return sorted(stores, key=lambda one: one[1])[-STORES:]


def _gather(program: UserProgram, scope: Scope, value: ast.expr, line: int) -> ast.Call | None:
    """The call that has gathered this factor from all ranks, by what it was given last; None where it is the rank's own."""
    for _ in range(STEPS):
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and last_word(node.func) in _JOINS and _is_joined_by_hand(node):
                return None
            if isinstance(node, ast.Call) and _is_gather(node):
                return node
        names = [one for one in ast.walk(value) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
        stores = [one for name in names for one in _stored(program, scope, name.id, line)]
        if not stores:
            return None
        value, line = max(stores, key=lambda one: one[1])
    return None


def _is_joined_by_hand(join: ast.Call) -> bool:
    """`torch.cat([own, others])`: who comes first is the user's choice."""
    return bool(join.args) and isinstance(join.args[0], ast.List | ast.Tuple | ast.BinOp)


def _is_gather(call: ast.Call) -> bool:
    """A function that is called after gathering, and not torch's selection by an index."""
    name = last_word(call.func)
    name = last_word(call.func.value) if name == "apply" and isinstance(call.func, ast.Attribute) else name
    selects = name == "gather" and len(call.args) + len(call.keywords) > 1
    return "gather" in name.lower() and not selects


def _keeps_the_order(program: UserProgram, scope: Scope, gather: ast.Call) -> bool:
    """Whether nothing in the functions that gather puts the rows into another order than that of the ranks."""
    for body in (scope, *_run_by(program, gather)):
        for node in program.inside(body):
            joined = isinstance(node, ast.Call) and last_word(node.func) in _JOINS and _is_joined_by_hand(node)
            moved = isinstance(node, ast.Call) and last_word(node.func) in _REORDERS
            if isinstance(node, ast.Delete) or joined or moved:
                return False
    return True


def _run_by(program: UserProgram, call: ast.Call) -> list[Scope]:
    """The user's functions that a call runs, and those that these call."""
    found: list[Scope] = []
    waiting: list[ast.AST] = [call]
    for _ in range(CALLS):
        new = [one for node in waiting for one in _targets(program, node) if one not in found]
        found += new
        waiting = [node for one in new for node in one.calls]
    return found


def _targets(program: UserProgram, node: ast.AST) -> list[Scope]:
    """Of `GatherLayer.apply(x)` its forward."""
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr == "apply":
        return program.methods({last_word(func.value)}, "forward")
    return program.targets(node)
