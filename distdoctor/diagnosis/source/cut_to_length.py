"""What the user's source does with the results of an evaluation: gathers them with their padding, or cuts these to the length of
the data (`every[: len(dataset)]`), or puts them together in an order that is not that of the data."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.source_file import FunctionNode, SourceFile, dotted, last_word, lineno, source_file
from distdoctor.recording.source_line import SourceLine


def cuts_to_length(sources: Mapping[str, str], loop: SourceLine) -> bool:
    """Whether anything in the file of this loop is cut to a `len(...)`, to accelerate's `remainder`, to a name that such a
    length was given, or, where it is gathered, to a parameter."""
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
    return bool(last_word(upper)) and (last_word(upper) in names or _is_given(file, node, upper))


def _is_given(file: SourceFile, node: ast.AST, length: ast.expr) -> bool:
    """Whether a length is a parameter of the function that gathers what is cut."""
    function = next((one for one, _ in file.enclosing(node) if isinstance(one, FunctionNode)), None)
    if function is None or not isinstance(length, ast.Name):
        return False
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    calls = (one for one in ast.walk(function) if isinstance(one, ast.Call))
    return length.id in {one.arg for one in arguments} and any("gather" in last_word(one.func) for one in calls)


@dataclass(frozen=True)
class CutRankAfterRank:
    """`gathered`: the all_gather. `line`: where its parts are put together, and the end is cut off."""

    gathered: SourceLine
    line: SourceLine


def cuts_rank_after_rank(sources: Mapping[str, str]) -> Iterator[CutRankAfterRank]:
    """Where what is gathered is put together rank after rank, and the end is cut off: `cat(parts)[:length]` of an all_gather's
    `parts`. That is the order of data that were dealt out in blocks."""
    for path in sources:
        file = source_file(sources, path)
        if file is None:
            continue
        for node in file.nodes(ast.Subscript):
            part = node.slice
            if not isinstance(part, ast.Slice) or part.lower is not None or part.upper is None:
                continue
            function = next((one for one, _ in file.enclosing(node) if isinstance(one, FunctionNode)), None)
            if function is None or isinstance(part.upper, ast.Constant):
                continue
            parts = dotted(_put_together(function, node.value))
            for call in (one for one in ast.walk(function) if isinstance(one, ast.Call) and one.args):
                if parts and last_word(call.func) == "all_gather" and dotted(call.args[0]) == parts:
                    line = SourceLine(path, node.lineno, function.name)
                    yield CutRankAfterRank(SourceLine(path, call.lineno, function.name), line)
                    break


def _put_together(function: FunctionNode, value: ast.expr) -> ast.expr | None:
    """What a value is the concatenation of, along the first dimension."""
    if isinstance(value, ast.Name):
        stores = [one for one in ast.walk(function) if isinstance(one, ast.Assign)]
        made = [one.value for one in stores if any(dotted(target) == value.id for target in one.targets)]
        return _put_together(function, made[0]) if len(made) == 1 and not isinstance(made[0], ast.Name) else None
    if (
        not isinstance(value, ast.Call)
        or last_word(value.func) not in ("cat", "concat", "concatenate")
        or not value.args
    ):
        return None
    dims = [*value.args[1:], *(word.value for word in value.keywords if word.arg in ("dim", "axis"))]
    first = all(isinstance(one, ast.Constant) and one.value == 0 for one in dims)
    return value.args[0] if first else None
