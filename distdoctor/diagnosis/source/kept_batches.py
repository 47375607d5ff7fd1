"""A loader that was read into a list, and the loop that goes through that list again and again."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import SourceFile, last_word, source_file
from distdoctor.recording.recording import SourceLine

_KEEPING = frozenset({"list", "tuple", "sorted"})
_HANDING_ON = frozenset({"enumerate", "tqdm", "iter", "trange", "zip"})


def loop_over_kept(sources: Mapping[str, str], read: SourceLine) -> SourceLine | None:
    """The loop over what the statement on this line has kept of a loader (`batches = list(loader)`), where another loop repeats
    it; None where there is none, or where the source shuffles what was kept."""
    file = source_file(sources, read.path)
    name = _kept_at(file, read.line) if file is not None else ""
    if file is None or not name:
        return None
    nodes = list(ast.walk(file.function_at(read.line)))
    calls = (node for node in nodes if isinstance(node, ast.Call))
    if any(last_word(call.func) == "shuffle" and name in map(ast.unparse, call.args) for call in calls):
        return None
    outer = [node for node in nodes if isinstance(node, ast.For | ast.While) and not _around(node, read.line)]
    for inner in outer:
        again = any(_around(loop, inner.lineno) for loop in outer) and _trains(inner)
        if again and isinstance(inner, ast.For) and name in _gone_through(inner.iter) and inner.lineno > read.line:
            return SourceLine(read.path, inner.lineno, read.function)
    return None


def _trains(loop: ast.For | ast.While) -> bool:
    """Whether the loop makes steps itself, or calls what is named after it: kept batches may also be evaluated."""
    called = (last_word(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any(word == "backward" or word.endswith("step") or word.startswith("train") for word in called)


def _around(outer: ast.stmt, line: int) -> bool:
    """Whether a line lies in the body of a loop."""
    return outer.lineno < line <= (outer.end_lineno or 0)


def _kept_at(file: SourceFile, line: int) -> str:
    """The name under which the assignment on this line keeps a whole loader, "" when there is none."""
    for node in file.nodes(ast.Assign):
        if node.lineno <= line <= (node.end_lineno or 0) and len(node.targets) == 1:
            value, target = node.value, node.targets[0]
            call = isinstance(value, ast.Call) and last_word(value.func) in _KEEPING
            if (call or isinstance(value, ast.ListComp)) and isinstance(target, ast.Name | ast.Attribute):
                return ast.unparse(target)
    return ""


def _gone_through(loop: ast.expr) -> set[str]:
    """What a `for` goes through, by name: `batches` in `tqdm(enumerate(batches))`."""
    if isinstance(loop, ast.Call) and last_word(loop.func) in _HANDING_ON:
        return {name for argument in loop.args for name in _gone_through(argument)}
    return {ast.unparse(loop)} if isinstance(loop, ast.Name | ast.Attribute) else set()
