"""Whether the user's source cuts what an evaluation has gathered down to the length of the data: `every[: len(dataset)]`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import SourceFile, last_word, source_file
from distdoctor.recording.source_line import SourceLine


def cuts_to_length(sources: Mapping[str, str], loop: SourceLine) -> bool:
    """Whether anything in the file of this loop is cut to a `len(...)`, or to a name that such a length was given."""
    file = source_file(sources, loop.path)
    return file is not None and any(_is_cut(file, node) for node in file.nodes(ast.Subscript))


def _is_cut(file: SourceFile, node: ast.AST) -> bool:
    part = node.slice if isinstance(node, ast.Subscript) else None
    if not isinstance(part, ast.Slice) or part.lower is not None or part.upper is None:
        return False
    upper = part.upper
    if isinstance(upper, ast.Call):
        return last_word(upper.func) == "len"
    lengths = (
        one for one in file.nodes(ast.Assign) if isinstance(one.value, ast.Call) and last_word(one.value.func) == "len"
    )
    names = {last_word(target) for one in lengths for target in one.targets}
    return bool(last_word(upper)) and last_word(upper) in names
