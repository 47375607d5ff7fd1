"""What the user's source does with the results of an evaluation: gathers them with their padding, or cuts these to the length of
the data (`every[: len(dataset)]`)."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import SourceFile, last_word, lineno, source_file
from distdoctor.recording.source_line import SourceLine


def cuts_to_length(sources: Mapping[str, str], loop: SourceLine) -> bool:
    """Whether anything in the file of this loop is cut to a `len(...)`, to accelerate's `remainder`, or to a name that such a
    length was given."""
    file = source_file(sources, loop.path)
    return file is not None and any(_is_cut(file, node) for node in file.nodes(ast.Subscript))


def gathers_padding(sources: Mapping[str, str], loop: SourceLine) -> SourceLine:
    """The first line in a loop, or behind it in its block, by which accelerate brings together what all ranks have, padding
    included; no line where there is none, or where `gather_for_metrics` leaves the padding out."""
    file = source_file(sources, loop.path)
    inner = next((one for one in file.nodes(ast.For) if one.lineno == loop.line), None) if file is not None else None
    if file is None or inner is None:
        return SourceLine()
    block = getattr(file.parent[inner], "body", [])
    behind = block[block.index(inner) :] if inner in block else [inner]
    calls = [node for one in behind for node in ast.walk(one) if isinstance(node, ast.Call)]
    named = {word: lineno(one) for one in reversed(calls) if (word := _method(one))}
    lines = [named[word] for word in _BRINGS_ALL if word in named]
    if not lines or "gather_for_metrics" in named:
        return SourceLine()
    return SourceLine(loop.path, min(lines), loop.function)


_BRINGS_ALL = ("gather", "reduce")  # of an Accelerator


def _method(call: ast.Call) -> str:
    """The method that is called of some object, not of torch: `gather` of `accelerator.gather(x)`."""
    func = call.func
    of_torch = isinstance(func, ast.Attribute) and last_word(func.value) in ("dist", "distributed", "torch")
    return func.attr if isinstance(func, ast.Attribute) and not of_torch else ""


def _is_cut(file: SourceFile, node: ast.AST) -> bool:
    part = node.slice if isinstance(node, ast.Subscript) else None
    if not isinstance(part, ast.Slice) or part.lower is not None or part.upper is None:
        return False
    upper = part.upper
    if any(
        last_word(one.func if isinstance(one, ast.Call) else one) in ("len", "remainder") for one in ast.walk(upper)
    ):
        return True
    lengths = (
        one for one in file.nodes(ast.Assign) if isinstance(one.value, ast.Call) and last_word(one.value.func) == "len"
    )
    names = {last_word(target) for one in lengths for target in one.targets}
    return bool(last_word(upper)) and last_word(upper) in names
