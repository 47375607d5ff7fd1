"""Whether the user's source takes a rank's share of every batch: all ranks read the same global batch, and each a part of it.

inputs = inputs.chunk(world_size)[rank]              # or inputs[rank::world_size], inputs[rank * n : (rank + 1) * n],
                                                     # inputs.narrow(0, rank * n, n), in the loop or in what it calls
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.rank_words import names_some_rank
from distdoctor.diagnosis.source.source_file import FunctionNode, SourceFile, last_word, source_file
from distdoctor.recording.source_line import SourceLine

_CUTS = frozenset({"chunk", "tensor_split", "split", "array_split", "view", "reshape", "unflatten"})
_PICKS = frozenset({"narrow", "select", "index_select", "islice"})


def takes_share_of_batches(sources: Mapping[str, str], loop: SourceLine) -> bool:
    """Whether the function around this line, or one that it calls, cuts something by the number of the rank."""
    file = source_file(sources, loop.path)
    if file is None:
        return False
    around = file.function_at(loop.line)
    called = {last_word(node.func) for node in ast.walk(around) if isinstance(node, ast.Call)}
    helpers = [one for one in _functions(file) if one.name in called]
    return any(_cuts(node) for scope in (around, *helpers) for node in ast.walk(scope))


def blocks_by_rank(sources: Mapping[str, str]) -> list[SourceLine]:
    """The lines that give each rank a block of neighbours: `order[rank * n : (rank + 1) * n]`, `batch.chunk(ranks)[rank]`."""
    files = [file for path in sources if (file := source_file(sources, path)) is not None]
    return [
        SourceLine(file.path, node.lineno, file.scope_of[node].traceback_name)
        for file in files
        for node in file.nodes(ast.Subscript, ast.Call)
        if _cuts(node) and not _is_strided(node)
    ]


def _is_strided(node: ast.AST) -> bool:
    """`rows[rank::world_size]`, `islice(rows, rank, None, world_size)`: not neighbours, but every so many."""
    if isinstance(node, ast.Call):
        return last_word(node.func) == "islice" and len(node.args) == 4
    return any(isinstance(one, ast.Slice) and one.step is not None for one in ast.walk(node))


def _functions(file: SourceFile) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef) if isinstance(node, FunctionNode))


def _cuts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return last_word(node.func) in _PICKS and any(_speaks_of_rank(one) for one in node.args)
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load) or not _speaks_of_rank(node.slice):
        return False
    of_parts = isinstance(node.value, ast.Call) and last_word(node.value.func) in _CUTS
    return of_parts or any(isinstance(one, ast.Slice) for one in ast.walk(node.slice))


def _speaks_of_rank(node: ast.AST) -> bool:
    words = (last_word(one) for one in ast.walk(node))
    return any(names_some_rank(word) or word == "get_rank" for word in words if word)
