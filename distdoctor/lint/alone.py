"""Branches for one process: `else` of the flag under which a script joins a group or wraps its model for several ranks."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.source.source_file import Scope, dotted, last_word
from distdoctor.lint.program import DDP, FSDP, ParsedFiles
from distdoctor.lint.rank_conditions import Condition, conditions


def runs_alone(node: ast.AST, scope: Scope, program: ParsedFiles, steps: int = 2) -> bool:
    """Whether a node runs only where the flag of distributed jobs is off, by the conditions here or those around every caller."""
    off = {word for one in conditions(node, scope) for word, value in _flags(one) if not value}
    if off & program.once(flags_of_jobs):
        return True
    callers = program.callers(scope) if steps else []
    return bool(callers) and all(runs_alone(site.call, site.scope, program, steps - 1) for site in callers)


def flags_of_jobs(program: ParsedFiles) -> frozenset[str]:
    """The names of flags (`ddp` of `args.ddp`) under which all groups of a file are joined, or all of its models wrapped."""
    under: dict[tuple[str, bool], list[set[str]]] = defaultdict(list)
    for scope in program.scopes:
        for call in scope.calls:
            wraps = program.kind_of_call(call, scope.file) in (DDP, FSDP)
            if wraps or program.is_torch(call.func, scope.file, "init_process_group"):
                flags = {word for one in conditions(call, scope) for word, value in _flags(one) if value}
                under[scope.file.path, wraps].append(flags)
    return frozenset(word for of_file in under.values() for word in set.intersection(*of_file))


def _flags(condition: Condition) -> Iterator[tuple[str, bool]]:
    """The names whose value a condition settles, and that value: both are off where `not ddp and not dp` lets it run."""
    yield from _settled(condition.test, not condition.negated)


def _settled(test: ast.expr, holds: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _settled(test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is holds:
            for value in test.values:
                yield from _settled(value, holds)
    elif dotted(test):
        yield last_word(test), holds
