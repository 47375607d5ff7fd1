"""Where the user's source takes this rank's part of a DTensor out of it: `self.router.to_local()`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.recording import SourceLine


def taken_local(sources: Mapping[str, str], parameter: str) -> SourceLine:
    """The one line that makes a parameter local and says nothing of its gradient; no line where none does, or several do."""
    program, name = program_of(sources), parameter.rpartition(".")[2]
    found = [
        program.scope_of(call).line(call)
        for file in program.files
        for call in file.nodes(ast.Call)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "to_local"
        and isinstance(call.func.value, ast.Attribute)
        and last_word(call.func.value) == name
        and not call.args
        and not call.keywords
    ]
    return found[0] if len(found) == 1 else SourceLine()
