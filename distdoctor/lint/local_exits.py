"""Loops that a rank leaves by a value of its own batch, while the others go on to average gradients in them, by hand or in the
backward of a wrapper.

loss = criterion(model(batch), targets)      # of this rank's batch
loss.backward()
average_gradients(model)                     # which takes all ranks
if loss.item() < 0.1:                        # and not all of them answer alike
    break

Told where nothing is left open: the value is made of the loss that goes into backward, or of the output of the model that
this loss is made of, by arithmetic and methods of tensors alone, and no call may have made it the same on all ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.finding import WARNING
from distdoctor.diagnosis.source.rank_local import COLLECTIVES
from distdoctor.diagnosis.source.reduced_gradients import reduces_gradients
from distdoctor.diagnosis.source.source_file import Loop, Scope, dotted, last_word, lineno, within
from distdoctor.lint.collectives import MAKES_GROUP, Issue, calls_in, issues
from distdoctor.lint.program import DDP, FSDP, ParsedFiles
from distdoctor.lint.rank_conditions import Condition, conditions, on_rank
from distdoctor.lint.rule import Sighting
from distdoctor.lint.training import backwards, names_in, reaches_backward, target_names

_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OF_TORCH = frozenset({"torch", "F", "np", "numpy", "math"})
_OF_PYTHON = frozenset({"float", "abs", "min", "max", "sum"})
_SHOWS = frozenset(
    {"print", "append", "extend", "add_scalar", "add_scalars", "log", "info", "debug", "warning", "backward"}
)
_OF_THE_JOB = ("world_size", "distributed", "num_processes", "nproc", "rank", "is_initialized", "ddp")


def by_own_value(scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    for branch, loop in _exits(scope):
        compared = next((one for one in _comparisons(branch.test) if _compares_own(one, branch, loop, scope)), None)
        tests = (branch.test, *(one.test for one in conditions(branch, scope)))
        if compared is None or any(word in ast.unparse(one).lower() for one in tests for word in _OF_THE_JOB):
            continue
        issue = next(_averages(loop, scope, program), None)
        if issue is None or issues(scope, program, calls_in(branch.body, scope)):
            continue
        call, where = issue.way[-1]
        words = ast.unparse(compared)
        yield Sighting(
            node=branch,
            scope=scope,
            title=f"a rank for which `{words}` is true leaves the loop, and the others go on to {issue.operation}",
            why=f"each rank compares a value of its own batch; in line {lineno(issue.way[0][0])} those that are still in the "
            "loop wait for it",
            remedy="decide-once",
            also=((call, where, f"issues {issue.operation}"),),
            severity=WARNING,
            evidence={"operation": issue.operation, "condition": words},
        )


def by_rank(scope: Scope, program: ParsedFiles) -> Iterator[Sighting]:
    """`if rank == 0 and patience.is_over(): break`, in a loop whose collectives take all ranks, which nobody tells of it."""
    for branch, loop in _exits(scope):
        condition = on_rank(branch.body[-1], scope, program)
        if condition is None or not within(loop, condition.statement, scope.file):
            continue
        calls = [call for call in scope.calls if within(loop, call, scope.file)]
        behind = [call for call in scope.calls if lineno(call) > (loop.end_lineno or 0)]
        for_all = [one for one in issues(scope, program, calls) if on_rank(one.way[0][0], scope, program) is None]
        issue = next((one for one in for_all if one.operation not in MAKES_GROUP), None)
        if issue is None or _others_are_told(condition, branch, loop, for_all, scope, program):
            continue
        if any(one.operation == issue.operation for one in issues(scope, program, behind)):
            continue  # by which those that wait in the loop may be told
        call, where = issue.way[-1]
        yield Sighting(
            node=branch,
            scope=scope,
            title=f"only ranks for which `{condition.where}` is true leave the loop, and the others go on to {issue.operation}",
            why=f"nothing tells the other ranks; in line {lineno(issue.way[0][0])} they wait for those that have left",
            remedy="decide-once",
            also=(
                (call, where, f"issues {issue.operation}"),
                (condition.statement, scope, "the condition on the rank"),
            ),
            severity=WARNING,
            evidence={"operation": issue.operation, "condition": condition.where},
        )


def _others_are_told(
    condition: Condition, branch: ast.If, loop: Loop, for_all: list[Issue], scope: Scope, program: ParsedFiles
) -> bool:
    """Whether the ranks that leave issue something first, or others leave by what a collective brought them, or by rank."""
    guarded = [call for call in scope.calls if within(condition.statement, call, scope.file)]
    if issues(scope, program, [call for call in guarded if on_rank(call, scope, program) is not None]):
        return True
    brought = {name for one in for_all for name in _given(one.way[0][0])}
    for other, left in _exits(scope):
        if other is branch or left is not loop:
            continue
        if on_rank(other.body[-1], scope, program) is not None or brought & names_in(other.test):
            return True
    return False


def _given(call: ast.Call) -> set[str]:
    return {name for arg in (*call.args, *(word.value for word in call.keywords)) for name in names_in(arg)}


def _compares_own(one: ast.Compare, branch: ast.If, loop: Loop, scope: Scope) -> bool:
    return any(_is_own(side, branch, loop, scope) for side in (one.left, one.comparators[0]))


def _exits(scope: Scope) -> Iterator[tuple[ast.If, Loop]]:
    """The `if`s whose body ends in `break` or `return`, each with the loop that it leaves."""
    for node in ast.walk(scope.node):
        leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break | ast.Return)
        if isinstance(node, ast.If) and leaves and scope.file.scope_of.get(node) is scope:
            loops = scope.file.loops_around(node)
            joined = any(
                last_word(getattr(i.context_expr, "func", None)).lower() == "join" for w in scope.withs for i in w.items
            )
            if loops and not joined:
                yield node, loops[0]


def _comparisons(test: ast.expr) -> Iterator[ast.Compare]:
    """What is compared by size in a test, all of whose parts have to be true."""
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else (test,):
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], _ORDER):
            yield part


def _averages(loop: Loop, scope: Scope, program: ParsedFiles) -> Iterator[Issue]:
    """What averages gradients over all ranks in a turn of the loop."""
    calls = [call for call in scope.calls if within(loop, call, scope.file)]
    for issue in issues(scope, program, calls):
        call, where = issue.way[-1]
        of_all = issue.operation == "all_reduce" and on_rank(issue.way[0][0], scope, program) is None
        if of_all and reduces_gradients({where.path: where.file.text}, where.line(call)):
            yield issue
    ends = [end for end in backwards(scope) if within(loop, end, scope.file)]
    for call in calls if ends else ():
        if program.kinds(call.func, scope) in ({DDP}, {FSDP}) and reaches_backward(call, scope, ends):
            yield Issue("the all_reduce in backward", ((ends[0], scope),))


def _lost(end: ast.Call) -> set[str]:
    """What goes backward."""
    return _parts(end.func) | {name for arg in end.args for name in _parts(arg)}


def _is_own(value: ast.expr, branch: ast.If, loop: Loop, scope: Scope) -> bool:
    """Whether a value is made of what the loss of this rank's batch is, or of the output of the model that it is made of."""
    ends = [call for call in backwards(scope) if within(loop, call, scope.file)]
    lost = {name for call in ends for name in _lost(call)}
    turn = {name for one in scope.assigns if within(loop, one, scope.file) for name in _targets(one)}
    of_loss, of_value = _made_of(lost, scope) & turn, _made_of(_parts(value), scope, branch) & turn
    if any(_may_agree(call, of_loss | of_value, scope) for call in scope.calls):
        return False
    if any(len(_values(name, scope, branch)) > 1 for name in of_value):
        return False  # of several values nobody knows which
    return any(name in lost or _is_output(name, scope) for name in of_value & of_loss)


def _made_of(names: set[str], scope: Scope, before: ast.If | None = None) -> set[str]:
    """These names, and those of which they are made."""
    found: set[str] = set()
    while names:
        found |= names
        names = {part for name in names for value in _values(name, scope, before) for part in _parts(value)} - found
    return found


def _parts(node: ast.AST) -> set[str]:
    """The names that arithmetic, functions of torch and methods of tensors make a value of; what other calls give is new."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Call):
        if last_word(node.func) == "scale":  # a GradScaler's
            return {part for arg in node.args for part in _parts(arg)}
        of_torch = dotted(node.func).partition(".")[0] in _OF_TORCH or dotted(node.func) in _OF_PYTHON
        return {part for arg in node.args for part in _parts(arg)} if of_torch else _parts(node.func)
    if isinstance(node, ast.Attribute | ast.Subscript):
        return _parts(node.value)
    if isinstance(node, ast.BinOp):
        return _parts(node.left) | _parts(node.right)
    return _parts(node.operand) if isinstance(node, ast.UnaryOp) else set()


def _values(name: str, scope: Scope, before: ast.If | None = None) -> list[ast.expr]:
    """What is assigned to a name in a function, or unpacked into it. `before`: not what only follows a branch in the body of its
    loop, which the next turn replaces before it comes there."""
    found = [
        one
        for one in scope.assigns
        if one.value is not None and name in _targets(one) and not (_scales(one) or _begins(one))
    ]
    earlier = [one for one in found if before is None or lineno(one) < lineno(before)]
    return [one.value for one in earlier or found if one.value is not None]


def _scales(one: ast.Assign | ast.AugAssign | ast.AnnAssign) -> bool:
    """`total /= steps`: the same value by another measure."""
    return isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Div | ast.Mult)


def _begins(one: ast.Assign | ast.AugAssign | ast.AnnAssign) -> bool:
    """`total = 0.0`, to which something is added."""
    return not isinstance(one, ast.AugAssign) and isinstance(one.value, ast.Constant)


def _targets(one: ast.Assign | ast.AugAssign | ast.AnnAssign) -> set[str]:
    targets = one.targets if isinstance(one, ast.Assign) else [one.target]
    return {name for target in targets for name in target_names(target)}


def _is_output(name: str, scope: Scope) -> bool:
    """Whether a value comes out of a call of something that has parameters: `model(x)`, `agent.value(x)`."""
    called = [dotted(value.func) for value in _values(name, scope) if isinstance(value, ast.Call)]
    trained = {dotted(one.value) for one in scope.file.attributes if one.attr == "parameters"} - {""}
    return any(f"{one}.".startswith(f"{model}.") for one in called for model in trained)


def _may_agree(call: ast.Call, names: set[str], scope: Scope) -> bool:
    """Whether a call may bring a value that one of these names holds from other ranks, or to them."""
    word = last_word(call.func)
    given = {one.id for arg in (*call.args, *(k.value for k in call.keywords)) for one in ast.walk(arg)
             if isinstance(one, ast.Name)}  # fmt: skip
    meets = COLLECTIVES.match(word) or any(part in word.lower() for part in ("reduce", "gather", "sync", "broadcast"))
    in_turn = any(
        isinstance(loop, ast.For) and names & {one.id for one in ast.walk(loop.iter) if isinstance(one, ast.Name)}
        for loop in scope.file.loops_around(call)
    )
    if meets and (given & names or in_turn):
        return True
    alone = isinstance(
        scope.file.parent.get(call), ast.Expr
    )  # its result is dropped: what it does, it does to what it is given
    plain = {arg.id for arg in call.args if isinstance(arg, ast.Name)}
    return alone and bool(plain & names) and word not in _SHOWS
