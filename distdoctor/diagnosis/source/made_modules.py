"""Where the user's source makes the module that holds a parameter: `self.final_norm = RMSNorm(dim)` for `final_norm.weight`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine


def module_made(sources: Mapping[str, str], parameter: str) -> SourceLine:
    """The one line that gives this module its name in its parent, or that registers the parameter itself; no line where the
    source shows none, or several."""
    program = program_of(sources)
    words = [word for word in parameter.split(".") if not word.isdigit()]
    for end in (len(words) - 1, len(words)):
        found = _assignments(program, words[:end])
        if found:
            scope = program.scope_of(found[0])
            return scope.line(found[0]) if len(found) == 1 else SourceLine()
    return SourceLine()


def _assignments(program: UserProgram, words: list[str]) -> list[ast.AST]:
    """The statements that assign `self.norm1` for `layers.norm1`, in the class of which `layers` holds instances where several
    classes have one."""
    stored = program.stores(words[-1], None) if words else []
    found: list[ast.AST] = [
        node for node, _ in stored if isinstance(node, ast.Assign) and program.scope_of(node).name == "__init__"
    ]
    if len(found) < 2 or len(words) < 2:
        return found
    holders = {kind for _, value in program.stores(words[-2], None) for kind in program.classes_of(value)}
    return [node for node in found if program.scope_of(node).of_class in holders]
