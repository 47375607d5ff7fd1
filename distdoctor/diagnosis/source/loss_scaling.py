"""Where the source multiplies or divides a loss by the number of ranks before it goes backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.source_file import source_file
from distdoctor.recording.recording import SourceLine

_RANKS = re.compile(r"world|num_replicas|n_ranks|num_ranks|num_processes|dp_size", re.IGNORECASE)
_NEAR = 40  # lines above backward


def scaling_line(sources: Mapping[str, str], backward: SourceLine, *, divides: bool) -> SourceLine:
    """The nearest line at or above `backward`, in its function, that divides (multiplies) something that goes into it by a name
    of the number of ranks."""
    file = source_file(sources, backward.path)
    if file is None:
        return SourceLine()
    statements = [node for node in file.nodes(ast.stmt) if not hasattr(node, "body")]
    near = [node for node in statements if backward.line - _NEAR <= node.lineno <= backward.line]
    wanted: set[str] = set()
    for node in sorted(near, key=lambda node: -node.lineno):
        goes_in = node.lineno <= backward.line <= (node.end_lineno or 0) or bool(_assigned(node) & wanted)
        if not goes_in:
            continue
        if any(_names_ranks(factor) for factor in _factors(node, divides)):
            return SourceLine(backward.path, node.lineno, backward.function)
        wanted |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return SourceLine()


def _assigned(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _factors(node: ast.stmt, divides: bool) -> Iterator[ast.expr]:
    kind: type[ast.operator] = ast.Div if divides else ast.Mult
    if isinstance(node, ast.AugAssign) and isinstance(node.op, kind):
        yield node.value
    for one in ast.walk(node):
        if isinstance(one, ast.BinOp) and isinstance(one.op, kind):
            yield one.right
            if not divides:
                yield one.left


def _names_ranks(factor: ast.expr) -> bool:
    return bool(_RANKS.search(ast.unparse(factor)))
