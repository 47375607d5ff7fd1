"""Where the user's source hashes by the builtin `hash`: of a text it gives another number in every process (PYTHONHASHSEED)."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.source_line import SourceLine


def hash_line(sources: Mapping[str, str]) -> SourceLine:
    """The only call of the builtin outside of a `__hash__`; no line where there is none, or there are several."""
    program = program_of(sources)
    calls = [call for file in program.files for call in file.nodes(ast.Call)]
    found = [
        (scope, call)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "hash" and len(call.args) == 1
        if (scope := program.scope_of(call)).name != "__hash__"
    ]
    if len(found) != 1:
        return SourceLine()
    scope, call = found[0]
    return scope.line(call)
