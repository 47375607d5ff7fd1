"""Where the user's source chooses between parts of a model."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from distdoctor.diagnosis.source.source_file import source_file
from distdoctor.recording.recording import SourceLine


def branch_line(sources: Mapping[str, str], parameters: Iterable[str]) -> SourceLine:
    """The `if`, conditional expression or `match` that uses most of the modules which hold these parameters; the innermost such.

    `parameters` are names as in `named_parameters`; the last module's name is looked for (`other` of `other.weight`). An unknown
    line when no source has one.
    """
    wanted = {name.split(".")[-2] for name in parameters if "." in name}
    found: list[tuple[int, int, str, int, str]] = []
    for path in sources:
        file = source_file(sources, path)
        for node in file.nodes(ast.If, ast.IfExp, ast.Match) if file is not None else ():
            function = file.scope_of[node].name if file is not None else ""
            if function and (used := _used(node, wanted)):
                length = (node.end_lineno or node.lineno) - node.lineno
                found.append((-len(used), length, path, node.lineno, function))
    if not found:
        return SourceLine()
    _, _, path, line, name = min(found)
    return SourceLine(path, line, name)


def are_never_called(sources: Mapping[str, str], parameters: Iterable[str]) -> bool:
    """Whether the source makes the modules which hold these parameters and mentions them nowhere else."""
    wanted = {name.split(".")[-2] if "." in name else "" for name in parameters}
    files = filter(None, (source_file(sources, path) for path in sources))
    mentioned = [(one.attr, type(one.ctx)) for file in files for one in file.attributes if one.attr in wanted]
    made, read = ({name for name, context in mentioned if context is kind} for kind in (ast.Store, ast.Load))
    return bool(wanted) and made == wanted and not read


def _used(node: ast.AST, wanted: set[str]) -> set[str]:
    return {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute) and part.attr in wanted}
