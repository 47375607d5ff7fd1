"""Whether the user's source empties or limits what a variable holds: `moves = []` in every episode, `len(cache) < n`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.rank_guard import guards_at
from distdoctor.diagnosis.source.source_file import FunctionNode, SourceFile, last_word, source_file
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

_EMPTYING = frozenset({"clear", "pop", "popleft", "popitem", "remove"})
_LOOPS = ast.For | ast.AsyncFor | ast.While


def is_let_go(sources: Mapping[str, str], site: SourceLine, label: str) -> bool:
    """Whether a loop of the function of `site`, or a loop that calls it, begins what `label` names anew, empties it, or asks for
    its length otherwise than to take a mean or to show it. Of an attribute, anywhere in the file but where the object is made,
    or in what is called from nowhere else."""
    file = source_file(sources, site.path)
    if file is None:
        return False
    name, attribute = label.rpartition(".")[2], "." in label
    function = file.function_at(site.line) if site.line else file.tree
    if attribute:
        scopes: list[ast.AST] = [one for one in file.nodes(*_FUNCTIONS) if not _makes(program_of(sources), one)]
    else:
        scopes = [loop for loop in ast.walk(function) if isinstance(loop, _LOOPS)]
        if isinstance(function, FunctionNode) and _is_called_in_a_loop(file, function.name):
            scopes.append(function)
    return any(_lets_go(node, name, attribute) for scope in scopes for node in _deciding(scope))


def _makes(program: UserProgram, function: ast.AST) -> bool:
    """Whether it is `__init__`, or a method that only `__init__` calls: `reset`, which nobody calls again."""
    scope = program.scopes.get(function)
    callers = program.callers.get(scope, ()) if scope is not None else ()
    return getattr(function, "name", "") == "__init__" or (
        bool(callers) and all(program.scope_of(one).name == "__init__" for one in callers)
    )


def emptied_by_others(
    sources: Mapping[str, str], site: SourceLine, label: str, rank: int
) -> tuple[SourceLine, str] | None:
    """The first line that empties what `label` names, and the condition on the rank by which this rank never comes there; None
    where it comes to one of them, where there is none, or where the source asks for its length or cuts it: that is a bound."""
    file = source_file(sources, site.path)
    if file is None or "." not in label:
        return None
    name, program = label.rpartition(".")[2], program_of(sources)
    made = [one for one in file.nodes(*_FUNCTIONS) if getattr(one, "name", "") != "__init__"]
    nodes = [node for one in made for node in _deciding(one)]
    emptying = [node for node in nodes if _lets_go(node, name, True)]
    if any(_asks_length(node) for node in emptying) or any(_cuts(node, name) for node in nodes):
        return None
    lines: dict[SourceLine, None] = {}
    for node in emptying:
        scope = program.scope_of(node)
        callers = program.callers.get(scope, ()) if scope.of_class else ()
        for one in callers or (node,):
            where = program.scope_of(one)
            lines[where.line(one)] = None
    barred = [
        (line, guard) for line in lines for guard in guards_at(sources, line) if guard.lets_through(rank) is False
    ]
    if not lines or {line for line, _ in barred} != set(lines):
        return None
    line, guard = barred[0]
    return line, guard.only_if


def _deciding(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes but what is divided by and what is shown: a length there bounds nothing."""
    left = [scope]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            left.append(node.left)
        elif not isinstance(node, ast.JoinedStr):
            left += ast.iter_child_nodes(node)


def _asks_length(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_word(node.func) == "len"


def _cuts(node: ast.AST, name: str) -> bool:
    """`self.kept = self.kept[-100:]`"""
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and last_word(node.value) == name


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_called_in_a_loop(file: SourceFile, name: str) -> bool:
    return any(last_word(node.func) == name for node in _calls_in_loops(file))


def _calls_in_loops(file: SourceFile) -> Iterator[ast.Call]:
    for loop in file.nodes(ast.For, ast.AsyncFor, ast.While):
        yield from (node for node in ast.walk(loop) if isinstance(node, ast.Call))


def _lets_go(node: ast.AST, name: str, attribute: bool) -> bool:
    def is_it(one: ast.AST) -> bool:
        known = isinstance(one, ast.Attribute) and one.attr == name
        return known if attribute else isinstance(one, ast.Name) and one.id == name

    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
        return any(map(is_it, flat)) and not any(map(is_it, ast.walk(node.value)))
    if isinstance(node, ast.Delete):
        return any(map(is_it, (part for one in node.targets for part in ast.walk(one))))
    if not isinstance(node, ast.Call):
        return False
    of_it = isinstance(node.func, ast.Attribute) and is_it(node.func.value) and node.func.attr in _EMPTYING
    return of_it or (last_word(node.func) == "len" and any(map(is_it, node.args)))
