"""Where the value of an argument was given: from a call back through names and parameters to the line that writes it out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.call_edits import keyword_of
from distdoctor.diagnosis.source.deciding import program_of
from distdoctor.diagnosis.source.rank_local import step_of
from distdoctor.diagnosis.source.source_file import lineno
from distdoctor.diagnosis.source.user_program import UserProgram
from distdoctor.recording.recording import SourceLine

STEPS = 4  # from the call to where the value is written


def given_at(sources: Mapping[str, str], site: SourceLine, name: str) -> list[tuple[SourceLine, str]]:
    """(line, what stands there) of the argument of this name in the call at a line, and of what it is made of, the nearest first.

    [] where the line shows no such argument, or its value comes from several places.
    """
    program = program_of(sources)
    calls = [node for file in program.files if file.path == site.path for node in file.nodes(ast.Call)]
    here = (one for one in calls if lineno(one) <= site.line <= (one.end_lineno or 0))
    given = [word.value for one in here if (word := keyword_of(one, name)) is not None]
    found: dict[SourceLine, str] = {}
    value = given[0] if len(given) == 1 else None
    for _ in range(STEPS):
        if value is None:
            break
        step = step_of(program, value)
        found.setdefault(SourceLine(step.path, step.line, step.function), step.text)
        made = [one for node in ast.walk(value) for one in _made_of(program, node)]
        value = made[0] if len(made) == 1 else None
    return list(found.items())


def _made_of(program: UserProgram, node: ast.AST) -> Iterator[ast.expr]:
    """What a variable was given, or what the callers pass for a parameter."""
    if not isinstance(node, ast.Name):
        return
    scope = program.scope_of(node)
    stores = [value for statement, value in program.stores(node.id, scope) if isinstance(statement, ast.Assign)]
    yield from program.passed(scope, node.id) or stores
