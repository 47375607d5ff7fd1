"""Whether the user's source empties or limits what a variable holds: `moves = []` in every episode, `len(cache) < n`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.source.source_file import FunctionNode, SourceFile, last_word, source_file
from distdoctor.recording.recording import SourceLine

_EMPTYING = frozenset({"clear", "pop", "popleft", "popitem", "remove"})
_LOOPS = ast.For | ast.AsyncFor | ast.While


def is_let_go(sources: Mapping[str, str], site: SourceLine, label: str) -> bool:
    """Whether a loop of the function of `site`, or a loop that calls it, begins what `label` names anew, empties it, or asks for
    its length. Of an attribute, anywhere in the file but where the object is made."""
    file = source_file(sources, site.path)
    if file is None:
        return False
    name, attribute = label.rpartition(".")[2], "." in label
    function = file.function_at(site.line) if site.line else file.tree
    if attribute:
        scopes: list[ast.AST] = [one for one in file.nodes(*_FUNCTIONS) if getattr(one, "name", "") != "__init__"]
    else:
        scopes = [loop for loop in ast.walk(function) if isinstance(loop, _LOOPS)]
        if isinstance(function, FunctionNode) and _is_called_in_a_loop(file, function.name):
            scopes.append(function)
    return any(_lets_go(node, name, attribute) for scope in scopes for node in ast.walk(scope))


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
