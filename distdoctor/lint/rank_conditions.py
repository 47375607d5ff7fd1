"""Conditions on the rank: which nodes run on some ranks only, and for which ranks a condition holds."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.source.rank_words import RANK_VARIABLES, lets_one_in, names_main, names_process
from distdoctor.diagnosis.source.source_file import FunctionNode, Scope, dotted, last_word
from distdoctor.lint.program import ParsedFiles, given_for

RANKS = (0, 1, 2, 3, 7, 63)  # a condition that these agree on is none on the rank

# `raise` is none of them: it ends the job, also for those that wait.
_LEAVING = ast.Continue | ast.Break | ast.Return
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

Answer = int | bool | None  # None: it depends on more than the rank


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition under which a node runs. `negated`: it runs when the test is false. `statement`: the `if`, or the decorator.

    `leaves`: the node is not inside; those for which the test is true have left before (`if rank != 0: return`).
    """

    test: ast.expr
    negated: bool
    statement: ast.AST
    leaves: bool = False

    @property
    def words(self) -> str:
        text = " ".join(ast.unparse(self.test).split())
        return text if len(text) < 60 else text[:57] + "..."

    @property
    def where(self) -> str:
        """The condition in which the node runs."""
        return f"not ({self.words})" if self.negated else self.words


def conditions(node: ast.AST, scope: Scope) -> Iterator[Condition]:
    """The conditions that decide whether a node runs, the innermost first, up to its function."""
    file = scope.file
    for outer, inner in file.enclosing(node):
        if isinstance(outer, ast.If | ast.IfExp | ast.While) and inner is not outer.test:
            orelse = outer.orelse if isinstance(outer.orelse, list) else [outer.orelse]
            if not isinstance(outer, ast.While):
                yield Condition(outer.test, any(inner is one for one in orelse), outer)
        elif isinstance(outer, ast.BoolOp):
            for value in outer.values[: next(n for n, one in enumerate(outer.values) if one is inner)]:
                yield Condition(value, isinstance(outer.op, ast.Or), outer)
        yield from _left_before(outer, inner)
        if isinstance(outer, FunctionNode):
            for decorator in outer.decorator_list:
                if lets_one_in(decorator):
                    yield Condition(decorator, False, decorator)


def _left_before(outer: ast.AST, inner: ast.AST) -> Iterator[Condition]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(outer, name, None)
        if not isinstance(block, list) or not any(inner is one for one in block):
            continue
        for statement in block:
            if statement is inner:
                return
            if isinstance(statement, ast.If) and _leaves(statement.body) and not statement.orelse:
                yield Condition(statement.test, True, statement, leaves=True)


def _leaves(block: list[ast.stmt]) -> bool:
    """Whether who runs a block does not run what follows it; `with open(path) as f: return f.read()` is such a one."""
    last = block[-1]
    return _leaves(last.body) if isinstance(last, ast.With | ast.AsyncWith) else isinstance(last, _LEAVING)


def on_rank(node: ast.AST, scope: Scope, program: ParsedFiles) -> Condition | None:
    """The innermost condition on the rank that a node stands under, None when every rank reaches it."""
    inner: set[str] = set()  # what is true in any case where the node runs
    for one in conditions(node, scope):
        known = (one.negated and _false_for_all(one.test, inner)) or _brings_context(one, scope, program)
        if not known and depends_on_rank(one.test, scope, program):
            return one
        if not one.negated:
            inner.add(ast.unparse(one.test))
    return None


def _brings_context(one: Condition, scope: Scope, program: ParsedFiles) -> bool:
    """Whether it is a decorator of ours that runs its function inside a `with`: collectives may ask for that context."""
    if not isinstance(scope.file.parent.get(one.test), FunctionNode):
        return False
    name = one.test.func if isinstance(one.test, ast.Call) else one.test
    decorator = program.function(name, scope.outer or scope)
    return decorator is not None and any(inner.withs for inner in decorator.functions.values())


def _false_for_all(test: ast.expr, known: set[str]) -> bool:
    """`not verbose and rank == 0` where `verbose` is known to be true: false on every rank."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else []
    return any(
        isinstance(p, ast.UnaryOp) and isinstance(p.op, ast.Not) and ast.unparse(p.operand) in known for p in parts
    )


def depends_on_rank(test: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    """Whether the ranks answer differently."""
    if isinstance(scope.file.parent.get(test), FunctionNode):  # a decorator; `if rank_zero_only:` is a setting
        return lets_one_in(test)
    answers = [_answer(test, rank, scope, program, 0) for rank in RANKS]
    known = {bool(one) for one in answers if one is not None}
    return len(known) == 2 or (len(known) == 1 and None in answers) or _equals_rank(test, scope, program)


def holds_on_every_rank(test: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    """Whether no rank of a job answers no: `RANK != -1`."""
    return all(_answer(test, rank, scope, program, 0) for rank in RANKS)


def only_ranks_of(one: Condition, other: Condition, scope: Scope, program: ParsedFiles) -> bool:
    """Whether `other` holds for no rank for which `one` does not: it brings nobody else along."""
    if one.negated == other.negated and ast.unparse(one.test) == ast.unparse(other.test):  # `where` may be cut short
        return True
    there, here = (_holds_for(condition, scope, program) for condition in (other, one))
    return there is not None and here is not None and there <= here


def _holds_for(condition: Condition, scope: Scope, program: ParsedFiles) -> frozenset[int] | None:
    """Those of `RANKS` that it lets through, None when the rank alone does not decide."""
    answers = {rank: _answer(condition.test, rank, scope, program, 0) for rank in RANKS}
    if None in answers.values():
        return None
    return frozenset(rank for rank, answer in answers.items() if bool(answer) is not condition.negated)


def mentions_rank(node: ast.AST, scope: Scope, program: ParsedFiles, steps: int = 2) -> bool:
    """Whether an expression is made from the rank, as `f"model-{rank}.pt"` or a name that was."""
    for one in ast.walk(node):
        if is_rank(one, scope, program):
            return True
        name = dotted(one)
        if name and steps and isinstance(one, ast.Name | ast.Attribute):
            for binding, where in program.bindings(name, scope)[:4]:
                if mentions_rank(binding.value, where, program, steps - 1):
                    return True
    return False


def is_rank(node: ast.AST, scope: Scope, program: ParsedFiles) -> bool:
    """Whether an expression is the number of this process: `rank`, `args.rank`, `dist.get_rank()`, `os.environ["RANK"]`."""
    if isinstance(node, ast.Call):
        word = last_word(node.func)
        if word == "int" and len(node.args) == 1:
            return is_rank(node.args[0], scope, program)
        if word in ("getenv", "get") and node.args:
            return isinstance(node.args[0], ast.Constant) and node.args[0].value in RANK_VARIABLES
        return word in ("get_rank", "get_global_rank", "get_local_rank", "global_rank", "local_rank") and not node.args
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in RANK_VARIABLES
    word = last_word(node)
    if not names_process(word):
        return False
    if isinstance(node, ast.Name):
        return not any(binding.looped for binding, _ in program.bindings(word, scope))
    return True


def _answer(node: ast.expr, rank: int, scope: Scope, program: ParsedFiles, steps: int) -> Answer:
    """The value of an expression on one rank."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if isinstance(node, ast.UnaryOp):
        value = _answer(node.operand, rank, scope, program, steps)
        if isinstance(node.op, ast.USub):
            return None if value is None else -value
        return None if value is None or not isinstance(node.op, ast.Not) else not value
    if isinstance(node, ast.BoolOp):
        return _of_several(node, rank, scope, program, steps)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _of_comparison(node, rank, scope, program, steps)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        left, right = (_answer(side, rank, scope, program, steps) for side in (node.left, node.right))
        return None if left is None or not right else left % right
    if is_rank(node, scope, program):
        # `if args.rank:` asks whether there is one
        return rank if not isinstance(node, ast.Attribute) or not _is_test(node, scope) else None
    return _of_name(node, rank, scope, program, steps)


def _is_test(node: ast.AST, scope: Scope) -> bool:
    parent = scope.file.parent.get(node)
    return not isinstance(parent, ast.Compare | ast.BinOp)


def _of_several(node: ast.BoolOp, rank: int, scope: Scope, program: ParsedFiles, steps: int) -> Answer:
    values = [_answer(part, rank, scope, program, steps) for part in node.values]
    decisive = isinstance(node.op, ast.Or)
    if any(value is not None and bool(value) is decisive for value in values):
        return decisive
    return None if None in values else not decisive


def _of_comparison(node: ast.Compare, rank: int, scope: Scope, program: ParsedFiles, steps: int) -> Answer:
    left, compares, other = _answer(node.left, rank, scope, program, steps), node.ops[0], node.comparators[0]
    if isinstance(compares, ast.In | ast.NotIn):
        if left is None or not isinstance(other, ast.Tuple | ast.List | ast.Set):
            return None
        members = [_answer(element, rank, scope, program, steps) for element in other.elts]
        return None if None in members else (left in members) is isinstance(compares, ast.In)
    if isinstance(compares, ast.Is | ast.IsNot):
        return isinstance(compares, ast.IsNot) if is_rank(node.left, scope, program) else None
    right = _answer(other, rank, scope, program, steps)
    if left is None or right is None:
        return None
    return _COMPARED[type(compares)](left, right)


def _of_name(node: ast.expr, rank: int, scope: Scope, program: ParsedFiles, steps: int) -> Answer:
    """`is_main_process()`, `args.is_master`, and names and functions that stand for a condition."""
    function = node.func if isinstance(node, ast.Call) else node
    word = last_word(function)
    if steps < 3:
        if isinstance(node, ast.Call):
            target = program.target(node, scope)
            if target is not None and target.returns:
                return _of_returns(target, rank, program, steps + 1)
        else:
            bound = program.bindings(dotted(node), scope)
            if len(bound) == 1 and not bound[0][0].looped and bound[0][0].item < 0:
                value = _answer(bound[0][0].value, rank, bound[0][1], program, steps + 1)
                if value is not None:
                    return value
    if names_main(word) and not _is_number(node, scope) and not _is_setting(word, scope, program):
        return rank == 0
    return None


def _is_setting(word: str, scope: Scope, program: ParsedFiles, steps: int = 3) -> bool:
    """Whether a parameter is called like a question for the main process, and its callers give it as a literal: `rank0=False`."""
    for site in program.callers(scope) if steps and word in scope.parameters else ():
        given = given_for(site.call, scope, word) or scope.default_of(word)
        if isinstance(given, ast.Constant) and isinstance(given.value, bool):
            return True
        if isinstance(given, ast.Name) and _is_setting(given.id, site.scope, program, steps - 1):
            return True
    return False


def _is_number(node: ast.AST, scope: Scope) -> bool:
    """`rank == main_rank`: the rank of the main process, not whether this is it."""
    return isinstance(scope.file.parent.get(node), ast.Compare)


def _of_returns(target: Scope, rank: int, program: ParsedFiles, steps: int) -> Answer:
    answers = {_answer(one.value, rank, target, program, steps) for one in target.returns if one.value is not None}
    if len(answers) > 1:  # `if not initialised: return True`
        answers = (
            {_answer(target.returns[-1].value, rank, target, program, steps)} if target.returns[-1].value else set()
        )
    return answers.pop() if len(answers) == 1 else None


def _equals_rank(test: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    """`rank == src`, with anything on the other side."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_equals_rank(value, scope, program) for value in test.values)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
        return False
    sides = (test.left, test.comparators[0])
    ranks = [is_rank(side, scope, program) for side in sides]
    other = sides[1] if ranks[0] else sides[0]
    return sum(ranks) == 1 and not isinstance(other, ast.Constant | ast.UnaryOp)
