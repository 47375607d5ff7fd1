"""What a line sends: the name of the tensor, and the one line that makes it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.source_file import dotted
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.recording import SourceLine


def broadcast_from(sources: Mapping[str, str], site: SourceLine) -> tuple[str, SourceLine]:
    """(its name, the line that assigns it); "" where the line does not show what it broadcasts, no line where several do."""
    program = program_of(sources)
    for call in calls_at(sources, site, "broadcast"):
        sent = call.args[0] if call.args else None
        if isinstance(sent, ast.Attribute):
            made = [statement for statement, _ in program.kept_as(sent)]
        elif isinstance(sent, ast.Name):
            made = [statement for statement, _ in program.stores(sent.id, program.scope_of(call))]
        else:
            continue
        lines = {program.scope_of(one).line(one) for one in made if isinstance(one, ast.Assign | ast.AnnAssign)}
        return dotted(sent), lines.pop() if len(lines) == 1 else SourceLine()
    return "", SourceLine()
