"""
DD119 group-made-by-some: a process group or device mesh is made by some ranks only.

What it means    new_group is called by every rank of the job, by those too that are no members. So is init_device_mesh.
Why it hurts     The ranks number their groups as they make them. Those that skip one number the next one differently: groups of
                 other members meet under one name, and the first collective in one of them hangs or mixes them up.
How we know      The call, or a call of the function it is in, is under a condition on the rank or on whether the rank is
                 among the members, and the other branch makes no group.
What to do       Make all groups on all ranks, in the same order; keep the one that this rank is a member of.
When it is fine  use_local_synchronization=True, where only the members call it.
Source           torch.distributed.new_group: all processes of the main group have to enter it, members or not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, dotted, lineno
from distdoctor.lint.collectives import MAKES_GROUP, Issue, issues
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rank_conditions import Condition, conditions, is_rank, on_rank
from distdoctor.lint.rule import Sighting, rule
from distdoctor.lint.rules.rank_conditional_collective import answered


@rule("DD119", "group-made-by-some", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        made = [one for one in issues(scope, program) if one.operation in MAKES_GROUP and not _kept(one)]
        under = [(one, _condition(one, scope, program)) for one in made]
        guarded = [(issue, condition) for issue, condition in under if condition is not None]
        told: set[ast.AST] = set()
        for issue, condition in guarded:
            # groups of other members answer nothing
            others = [] if _asks_for_membership(condition.test, scope, program) else guarded
            if condition.statement not in told and not answered(issue, condition, others, scope, program):
                told.add(condition.statement)
                yield _sighting(issue, condition, scope)


def _kept(issue: Issue) -> bool:
    """Whether a function on the way makes a group only where it has none of these members yet: all may have been made before."""
    asked = (one.test for call, where in issue.way[1:] for one in conditions(call, where))
    return any(isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn) for test in asked)


def _condition(issue: Issue, scope: Scope, program: ParsedFiles) -> Condition | None:
    call = issue.way[0][0]
    found = on_rank(call, scope, program)
    return found or next(
        (one for one in conditions(call, scope) if _asks_for_membership(one.test, scope, program)), None
    )


def _asks_for_membership(test: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    """`rank in members`: it would need no question if all ranks were."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _asks_for_membership(test.operand, scope, program)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.In | ast.NotIn):
        return False
    return is_rank(test.left, scope, program)


def _sighting(issue: Issue, condition: Condition, scope: Scope) -> Sighting:
    first, last = issue.way[0][0], issue.way[-1]
    through = f" through {dotted(first.func)}()" if len(issue.way) > 1 else ""
    also = [(condition.statement, scope, "the condition on the rank")]
    if len(issue.way) > 1:
        also.append((last[0], last[1], f"calls {issue.operation}"))
    return Sighting(
        node=first,
        scope=scope,
        title=f"{issue.operation} is called{through} only where `{condition.where}`, and every rank has to call it",
        why=f"the ranks that skip it (line {lineno(condition.statement)}) number their next groups differently",
        change="make every group on every rank, and keep the one that this rank is a member of",
        also=tuple(also),
        evidence={"operation": issue.operation, "condition": condition.words},
    )


SICK = """
import torch.distributed as dist
def mine(size):
    rank = dist.get_rank()
    for start in range(0, dist.get_world_size(), size):
        ranks = list(range(start, start + size))
        if rank in ranks:
            group = dist.new_group(ranks)
    return group
"""
HEALTHY = """
import torch.distributed as dist
def mine(size):
    rank = dist.get_rank()
    for start in range(0, dist.get_world_size(), size):
        ranks = list(range(start, start + size))
        made = dist.new_group(ranks)
        if rank in ranks:
            group = made
    return group
"""
