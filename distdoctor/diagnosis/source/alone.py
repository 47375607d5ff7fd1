"""What a training loop lets one rank do alone: branches on the rank around calls, in the loop of a line. Pure `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from distdoctor.diagnosis.source.given_values import all_made_of
from distdoctor.diagnosis.source.rank_guard import of_test
from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

_LEVELS = 3  # of functions, from the line up to its loop
_TRIFLES = frozenset(
    {"print", "info", "debug", "warning", "write", "set_postfix", "set_description", "log", "item", "format"}
)


def done_alone(
    sources: Mapping[str, str], site: SourceLine, rank: int, others: Sequence[int]
) -> list[tuple[SourceLine, str]]:
    """(line, condition) of the branches in the loop around a line that this rank enters and the others don't; those in which it
    does no more than print are left out. The ones that call the user's own functions come first."""
    program = program_of(sources)
    scope = next((s for s in program.scopes.values() if s.path == site.path and s.name and _holds(s, site)), None)
    found: list[tuple[bool, SourceLine, str]] = []
    for where, inside in _loops(program, scope, site):
        for node in ast.walk(inside):
            if isinstance(node, ast.If) and _is_for_one(program, node.test, rank, others):
                calls = [one for part in node.body for one in ast.walk(part) if isinstance(one, ast.Call)]
                heavy = [one for one in calls if last_word(one.func) not in _TRIFLES]
                own = any(program.targets(one) for one in heavy)
                if heavy:
                    found.append((not own, where.line(node), ast.unparse(node.test)))
    return [(line, test) for _, line, test in sorted(found, key=lambda one: one[0])]


def _holds(scope: Scope, site: SourceLine) -> bool:
    return scope.node is scope.file.function_at(site.line)


def _loops(program: UserProgram, scope: Scope | None, site: SourceLine) -> Iterator[tuple[Scope, ast.AST]]:
    """The function that the line stands in, up to the innermost loop around it or around the one call of that function."""
    node: ast.AST | None = None
    for _ in range(_LEVELS):
        if scope is None:
            return
        path = scope.file.path_to(node.lineno if isinstance(node, ast.Call) else site.line)
        loops = [one for one in path if isinstance(one, ast.For | ast.While) and program.scope_of(one) is scope]
        if loops:
            yield scope, loops[-1]
            return
        if scope.name:
            yield scope, scope.node
        calls = [one for one in program.callers.get(scope, ()) if isinstance(one, ast.Call)]
        if len(calls) != 1:
            return
        node, scope = calls[0], program.scope_of(calls[0])


def _is_for_one(program: UserProgram, test: ast.expr, rank: int, others: Sequence[int]) -> bool:
    """Whether one of the conditions that must hold together is on the rank, and may let this one in and none of the others."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    guards = [of_test(one) for part in parts for one in (part, *_existence(program, part))]
    return any(
        one.on_rank
        and one.lets_through(rank) is not False
        and all(one.lets_through(other) is not True for other in others)
        for one in guards
    )


def _existence(program: UserProgram, test: ast.expr) -> Iterator[ast.expr]:
    """The condition under which there is what is asked for: `rank == 0` of `writer is not None`, or of `writer`, that was made
    as `Writer() if rank == 0 else None`."""
    asked = test
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
        asked = test.left
    for made in all_made_of(program, asked) if isinstance(asked, ast.Name | ast.Attribute) else ():
        if isinstance(made, ast.IfExp) and isinstance(made.orelse, ast.Constant) and not made.orelse.value:
            yield made.test
