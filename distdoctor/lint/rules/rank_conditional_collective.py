"""
DD112 rank-conditional-collective: a collective that only some ranks reach waits forever for the others.

What it means    A collective needs every rank of its group. This one, or a call of the function it is in, is under a
                 condition on the rank.
Why it hurts     The ranks that skip it go on, the others wait until the timeout.
How we know      The condition differs between ranks, and its other branch issues no collective. Helper
                 functions are followed, within the file and across files. A rank that catches an exception around its
                 backward and goes on skips what follows too (a warning), and so does one that finds a file which
                 another rank is writing (possible), and one that leaves a loop by a value of its own batch, in which the
                 others go on to average gradients, or by its number, in which they go on to any collective (a warning).
What to do       Move the collective out of the condition; keep inside it only what one rank should do.
When it is fine  Both branches issue it; one barrier for rank 0 and one for the others; a subgroup given as `group=`.
Source           torch.distributed: collectives have to be called by all ranks of the group.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from distdoctor.diagnosis.finding import ERROR
from distdoctor.diagnosis.source.source_file import Scope, dotted, lineno
from distdoctor.lint.collectives import MAKES_GROUP, Issue, calls_in, issues
from distdoctor.lint.local_exits import by_own_value, by_rank
from distdoctor.lint.local_skips import after_exception, beside_writer
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rank_conditions import Condition, conditions, depends_on_rank, on_rank, only_ranks_of
from distdoctor.lint.rule import Sighting, rule


@rule("DD112", "rank-conditional-collective", severity=ERROR)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    for scope in program.scopes:
        issued = [one for one in issues(scope, program) if one.operation not in MAKES_GROUP]  # those are DD119
        guarded = [(one, on_rank(one.way[0][0], scope, program)) for one in issued]
        under = [(issue, condition) for issue, condition in guarded if condition is not None]
        told: set[ast.AST] = set()
        for issue, condition in under:
            if condition.statement in told or _may_exclude_each_other(issue, condition, scope, program):
                continue
            if _asked_on_the_way(issue) > MOST_ASKED or _is_told_whether(issue):
                continue
            if not answered(issue, condition, under, scope, program):
                told.add(condition.statement)
                yield _sighting(issue, condition, scope)
        yield from after_exception(scope, program)
        yield from beside_writer(scope, program)
        yield from by_own_value(scope, program)
        yield from by_rank(scope, program)


def _may_exclude_each_other(issue: Issue, condition: Condition, scope: Scope, program: ParsedFiles) -> bool:
    """`if sharded or rank == 0: evaluate()`, where evaluate issues its collective under `if sharded`: all ranks or none."""
    lets_all_through = ast.And if condition.negated else ast.Or
    if not isinstance(condition.test, ast.BoolOp) or not isinstance(condition.test.op, lets_all_through):
        return False
    if all(depends_on_rank(part, scope, program) for part in condition.test.values):
        return False
    inner = [one for call, where in issue.way for one in conditions(call, where)]
    return any(one.statement is not condition.statement for one in inner)


MOST_ASKED = 2  # functions on the way; a collective behind more settings is of a program that is set up otherwise


def _asked_on_the_way(issue: Issue) -> int:
    """How many of the functions on the way go on under a condition that is none on whether there is a job at all."""
    asked = 0
    for call, where in issue.way[1:]:
        tests = (ast.unparse(one.test) for one in conditions(call, where))
        asked += any(not any(word in test for word in _OF_THE_JOB) for test in tests)
    return asked


def _is_told_whether(issue: Issue) -> bool:
    """Whether a call on the way works out for the function whether there are others to meet: `now(share=not alone)`."""
    for (call, _), (inner, target) in pairwise(issue.way):
        asked = {name for one in conditions(inner, target) for name in _plain_names(one.test)} & set(target.parameters)
        given = (one.value for one in call.keywords if one.arg in asked)
        if any(isinstance(one, ast.UnaryOp | ast.Compare | ast.BoolOp) for one in given):
            return True
    return False


def _plain_names(test: ast.expr) -> Iterator[str]:
    """`share` of `not share or alone()`."""
    if isinstance(test, ast.UnaryOp):
        yield from _plain_names(test.operand)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _plain_names(part)
    elif isinstance(test, ast.Name):
        yield test.id


_OF_THE_JOB = ("is_initialized", "is_available", "world_size", "distributed")


def answered(
    issue: Issue, condition: Condition, under: list[tuple[Issue, Condition]], scope: Scope, program: ParsedFiles
) -> bool:
    """Whether the ranks on the other side of the condition issue something too."""
    statement = condition.statement
    elsewhere = [
        where for other, where in under if other.operation == issue.operation and where.statement is not statement
    ]
    if not all(only_ranks_of(condition, where, scope, program) for where in elsewhere):
        return True  # `if rank != 0: barrier()` ... `if rank == 0: barrier()`
    if _is_heard_outside(issue, scope, program):
        return True
    if not isinstance(statement, ast.If | ast.IfExp):
        return False
    other_side = statement.body if condition.negated else statement.orelse
    calls = calls_in(other_side if isinstance(other_side, list) else [other_side], scope)
    if isinstance(statement, ast.If) and not condition.negated and _leaves_behind(issue.way[0][0], statement.body):
        calls += [call for call in scope.calls if lineno(call) > (statement.end_lineno or 0)]
    return bool(issues(scope, program, calls)) or any(
        _may_wait(call) or _is_handed_in(call, scope, program) or _hands_over(call, scope, program) for call in calls
    )


def _is_heard_outside(issue: Issue, scope: Scope, program: ParsedFiles) -> bool:
    """Whether the function around this one issues the very same call under a condition on the rank: one rank calls the closure,
    and tells the others, which stand there, to do so too."""
    call, outer = issue.way[0][0], scope.outer
    while outer is not None and outer.name:
        alike = (one for one in outer.calls if ast.unparse(one) == ast.unparse(call))
        if any(on_rank(one, outer, program) is not None for one in alike):
            return True
        outer = outer.outer
    return False


def _leaves_behind(call: ast.Call, block: list[ast.stmt]) -> bool:
    """Whether the ranks that issue this call leave before what follows the condition: it stands in a block that ends so."""
    if isinstance(block[-1], ast.Return | ast.Continue | ast.Break | ast.Raise):
        return True
    for one in block:
        if any(node is call for node in ast.walk(one)):
            return any(_leaves_behind(call, inner) for inner in _blocks(one) if _holds(inner, call))
    return False


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """What a statement runs under conditions of its own."""
    for name in ("body", "orelse", "finalbody"):
        yield from [block] if (block := getattr(statement, name, [])) else []
    yield from (handler.body for handler in getattr(statement, "handlers", ()))


def _holds(block: list[ast.stmt], call: ast.Call) -> bool:
    return any(node is call for one in block for node in ast.walk(one))


def _is_handed_in(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """A function that is a value here, `usual(totals)`: it may do anything."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return (
        bool(name)
        and program.target(call, scope) is None
        and (name in scope.parameters or bool(program.bindings(name, scope)))
    )


def _hands_over(call: ast.Call, scope: Scope, program: ParsedFiles) -> bool:
    """Whether a function of ours that issues something is given to the call, which may call it: `study.optimize(objective)`."""
    given = (one for one in (*call.args, *(one.value for one in call.keywords)) if dotted(one))
    targets = (program.function(one, scope) for one in given)
    return any(target is not None and bool(issues(target, program)) for target in targets)


def _may_wait(call: ast.Call) -> bool:
    """Something whose name says that it meets other ranks, in code that we do not have."""
    word = dotted(call.func).rpartition(".")[2]
    return any(
        part in word for part in ("barrier", "gather", "reduce", "broadcast", "recv", "worker", "client", "wait")
    )


def _sighting(issue: Issue, condition: Condition, scope: Scope) -> Sighting:
    first, last = issue.way[0][0], issue.way[-1]
    through = f" through {dotted(first.func)}()" if len(issue.way) > 1 else ""
    left = condition.leaves or condition.negated
    only = f"ranks for which `{condition.words}` is {'false' if left else 'true'}"
    also = [(condition.statement, scope, "the condition on the rank")]
    if len(issue.way) > 1:
        also.append((last[0], last[1], f"issues {issue.operation}"))
    return Sighting(
        node=first,
        scope=scope,
        title=f"only {only} reach {issue.operation}{through}",
        why=f"the other ranks skip {issue.operation} (the condition is on line {lineno(condition.statement)}); those that "
        "issue it wait for them until the timeout",
        remedy="call-on-every-rank",
        also=tuple(also),
        evidence={"operation": issue.operation, "condition": condition.words},
    )


SICK = """
import torch.distributed as dist
def meet(): dist.barrier()
def save(rank):
    if rank == 0:
        meet()
"""
HEALTHY = """
import torch.distributed as dist
def meet(): dist.barrier()
def save(rank):
    if rank == 0:
        print("saved")
    meet()
"""
