"""Lists of what is trained at the moment when they are made: `[p for p in model.parameters() if p.requires_grad]`. Pure `ast`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.recording import SourceLine


def list_of_trained(sources: Mapping[str, str], used_at: SourceLine) -> SourceLine:
    """Where the function around a line has its list from, if that is such a one of the same file."""
    file = source_file(sources, used_at.path)
    function = file.function_at(used_at.line) if file is not None else None
    if file is None or function is None:
        return SourceLine()
    used = {last_word(node) for node in ast.walk(function) if isinstance(node, ast.Name | ast.Attribute)}
    for assign in file.nodes(ast.Assign):
        filtered = any(
            isinstance(node, ast.Attribute) and node.attr == "requires_grad"
            for made in ast.walk(assign.value)
            if isinstance(made, ast.comprehension)
            for test in made.ifs
            for node in ast.walk(test)
        )
        if filtered and any(last_word(target) in used for target in assign.targets):
            return SourceLine(used_at.path, assign.lineno)
    return SourceLine()
