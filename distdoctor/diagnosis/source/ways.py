"""How a line is reached: by the calls that lead down to it, from the bodies above."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distdoctor.diagnosis.source.source_file import FunctionNode, Scope, SourceFile, lineno
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

DEEPEST = 8  # calls between the body that leads to both lines and one of them


@dataclass(frozen=True, eq=False)
class Way:
    """How a line is reached: by body, the nodes in it that lead there, and how many calls away it is.

    `recorded`: what was recorded to run a function, whether or not the source shows that it does (`self.callback()`).
    """

    nodes: dict[Scope, list[ast.AST]]
    depth: dict[Scope, int]
    recorded: dict[Scope, ast.AST] = field(default_factory=dict)


def way_to(program: UserProgram, site: SourceLine, callers: Sequence[SourceLine] = ()) -> Way | None:
    """How a line is reached; only by these callers where the source shows them."""
    node = _node_of(program, site)
    if node is None:
        return None
    nodes: dict[Scope, list[ast.AST]] = {program.scope_of(node): [node]}
    depth = {program.scope_of(node): 0}
    callers = _callers_of_functions(site, callers)
    recorded: dict[Scope, ast.AST] = {}
    waiting = list(nodes)
    for scope in waiting:
        if depth[scope] >= DEEPEST:
            continue
        called_at = callers[depth[scope]] if depth[scope] < len(callers) else None
        shown = program.callers.get(scope, [])
        calling = [n for n in shown if called_at is not None and _stands_at(program, n, called_at)]
        if not calling and called_at is not None and (node := _node_of(program, called_at)) is not None:
            calling = [node]
        if calling:
            recorded[scope] = calling[0]
        for caller in calling or shown:
            where = program.scope_of(caller)
            if where not in depth:
                depth[where], nodes[where] = depth[scope] + 1, []
                waiting.append(where)
            if depth[where] == depth[scope] + 1:
                nodes[where].append(caller)
    return Way(nodes, depth, recorded)


_COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})


def _callers_of_functions(site: SourceLine, callers: Sequence[SourceLine]) -> list[SourceLine]:
    """The callers without the function that a comprehension stands in: that has a frame of its own (a list's until Python 3.12),
    and calls nothing."""
    below = (site, *callers)
    return [caller for caller, one in zip(callers, below, strict=False) if one.function not in _COMPREHENSIONS]


def leads_to(sources: Mapping[str, str], site: SourceLine, block: ast.AST) -> bool:
    """Whether a line stands in a block, or in a function that something in the block calls, directly or through others."""
    program = program_of(sources)
    way = way_to(program, site)
    nodes = way.nodes.get(program.scope_of(block), ()) if way is not None else ()
    return any(parent is block for node in nodes for parent, _ in program.above(node))


def _stands_at(program: UserProgram, node: ast.AST, site: SourceLine) -> bool:
    ends = getattr(node, "end_lineno", None) or 0
    return program.scope_of(node).path == site.path and lineno(node) <= site.line <= ends


def _node_of(program: UserProgram, site: SourceLine) -> ast.AST | None:
    file = next((file for file in program.files if file.path == site.path), None)
    return _node_at(file, site.line) if file is not None else None


def _node_at(file: SourceFile, line: int) -> ast.AST | None:
    """The innermost statement of a line, as the call in it where it has one."""
    found: ast.AST | None = None
    for node in file.nodes(ast.stmt, ast.ExceptHandler):
        inside = node.lineno <= line <= (node.end_lineno or 0)
        if inside and not isinstance(node, FunctionNode | ast.ClassDef):
            found = node
    if found is None:
        return None
    calls = [n for n in ast.walk(found) if isinstance(n, ast.Call) and n.lineno <= line <= (n.end_lineno or 0)]
    held = [n for n in calls if not hasattr(found, "body") or n.lineno == line]
    return held[0] if held else found
