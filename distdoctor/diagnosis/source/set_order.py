"""Loops over a set of texts: the order in which a process goes through it depends on the hash seed of that process.

Pure `ast`. Only what is plainly a set of texts counts: written out, or made of the names of parameters or of what a text was
split into. What is sorted, a list or a dict has an order of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.call_edits import calls_at, node_replaced
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.source_file import FunctionNode, last_word, source_file
from distdoctor.diagnosis.source.text_sets import set_of_anything, set_of_texts
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.recording import SourceLine

_WITHOUT_ORDER = frozenset({"sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len", "dict"})


@dataclass(frozen=True)
class SetLoop:
    """A loop over a set of texts in which a collective is called with what belongs to the element. `size` 0: not known."""

    loop: SourceLine
    made: SourceLine
    text: str  # what is gone through, as it is written
    size: int
    edits: tuple[Edit, ...]  # that put it in order
    of_dict: bool = False  # it is a dict, in the order in which its keys came


def dict_loop_around(sources: Mapping[str, str], site: SourceLine, operation: str) -> SetLoop | None:
    """The same of a dict that has the order in which its keys came: the source does not write them out, and makes what is put in
    as large as its key says. Sizes that vary with the data may differ under one key."""
    program = program_of(sources)
    for call in calls_at(sources, site, operation)[-1:]:
        for loop, _ in program.above(call):
            owner = _dict_of(loop.iter) if isinstance(loop, ast.For) and _depends(call, loop) else None
            puts = _filled(program, owner) if owner is not None else ()
            filled = next((one for one in puts if _is_sized_by_key(program, one)), None)
            if owner is not None and filled is not None and isinstance(loop, ast.For):
                scope = program.scope_of(filled)
                made = scope.line(filled)
                where = SourceLine(site.path, loop.lineno, site.function)
                return SetLoop(where, made, ast.unparse(owner), 0, (), of_dict=True)
    return None


def _dict_of(gone_through: ast.expr) -> ast.Name | ast.Attribute | None:
    """The `tables` of `tables`, `tables.items()`, `list(tables)`."""
    while isinstance(gone_through, ast.Call):
        func = gone_through.func
        if isinstance(func, ast.Attribute) and func.attr in ("items", "keys", "values"):
            gone_through = func.value
        elif last_word(func) in ("list", "tuple", "enumerate", "tqdm") and gone_through.args:
            gone_through = gone_through.args[0]
        else:
            return None
    return gone_through if isinstance(gone_through, ast.Name | ast.Attribute) else None


_MAKERS = frozenset({"zeros", "ones", "empty", "full", "eye", "rand", "randn"})


def _is_sized_by_key(program: UserProgram, filled: ast.expr) -> bool:
    """Whether what is put in is a tensor that the source makes of the key, and besides only of what the module spells out."""
    if isinstance(filled, ast.Call):
        key, value = filled.args[0], next(iter(filled.args[1:]), None)
    else:
        assert isinstance(filled, ast.Subscript)
        statement = program.parents.get(filled)
        key, value = filled.slice, statement.value if isinstance(statement, ast.Assign) else None
    assert key is not None
    if not isinstance(value, ast.Call) or last_word(value.func) not in _MAKERS:
        return False
    of_key = {node.id for node in ast.walk(key) if isinstance(node, ast.Name)}
    given = (node for part in (*value.args, *(one.value for one in value.keywords)) for node in ast.walk(part))
    others = [node for node in given if isinstance(node, ast.Name) and node.id not in of_key]
    stores = [program.stores(node.id, program.scope_of(node)) for node in others]
    return any(
        isinstance(node, ast.Name) and node.id in of_key for part in value.args for node in ast.walk(part)
    ) and all(isinstance(program.scope_of(statement).node, ast.Module) for found in stores for statement, _ in found)


def _filled(program: UserProgram, owner: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """What puts something into a dict under a key that is no constant: `d[key] = ...`, `d.setdefault(key, ...)`."""
    name = ast.unparse(owner)
    own = program.scope_of(owner)
    for file in program.files:
        for node in file.nodes(ast.Call, ast.Subscript):
            scope = program.scope_of(node)
            same = scope is own or (isinstance(owner, ast.Attribute) and scope.of_class == own.of_class)
            if isinstance(node, ast.Subscript):
                holder, key = node.value, node.slice if isinstance(node.ctx, ast.Store) else None
            else:
                at = node.func
                holder = at.value if isinstance(at, ast.Attribute) and at.attr == "setdefault" else node
                key = node.args[0] if holder is not node and node.args else None
            if same and key is not None and not isinstance(key, ast.Constant) and ast.unparse(holder) == name:
                yield node


def set_loop_around(
    sources: Mapping[str, str], site: SourceLine, operation: str, *, known_to_differ: bool = False
) -> SetLoop | None:
    """The loop over a set in which the collective of a line is called, with something that depends on the element.

    A set of texts; of anything, where the orders are known to differ.
    """
    if not any(word in text for text in sources.values() for word in ("set(", "{")):
        return None
    program = program_of(sources)
    for call in calls_at(sources, site, operation)[-1:]:
        for loop, _ in program.above(call):
            if not isinstance(loop, ast.For) or not _depends(call, loop):
                continue
            made = (set_of_anything if known_to_differ else set_of_texts)(program, loop.iter)
            if made is not None:
                return _found(program, site, loop, made)
    return None


def _found(program: UserProgram, site: SourceLine, loop: ast.For, made: ast.expr) -> SetLoop:
    text = ast.unparse(loop.iter)
    size = len(made.elts) if isinstance(made, ast.Set) else 0
    scope = program.scope_of(made)
    return SetLoop(
        SourceLine(site.path, loop.lineno, site.function),
        scope.line(made),
        text,
        size,
        (node_replaced(site.path, loop.iter, f"sorted({text})"),) if loop.iter.lineno == loop.iter.end_lineno else (),
    )


def _depends(call: ast.Call, loop: ast.For) -> bool:
    """Whether what the call is given belongs to the element that the loop is at."""
    known = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    grown = -1
    while grown != len(known):
        grown = len(known)
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and _mentions(node.value, known):
                known |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return any(_mentions(part, known) for part in (*call.args, *(k.value for k in call.keywords)))


def _mentions(expression: ast.AST, names: set[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(expression))


def lists_in_set_order(sources: Mapping[str, str], near: str) -> list[SourceLine]:
    """The lines that make a list of parameters in the order of a set, for where the orders are known to differ: those in a file
    first that are given as `params`, then all. By the names that its sets have, whatever is in them."""
    file = source_file(sources, near)
    if file is None:
        return []
    sets = {name for node in file.nodes(ast.Assign) for name in _named_sets(node)}
    listed: list[tuple[ast.expr, ast.expr]] = [
        (node, node.generators[0].iter) for node in file.nodes(ast.ListComp, ast.GeneratorExp)
    ]
    listed += [(node, node.args[0]) for node in file.nodes(ast.Call) if _is_list_of_one(node)]
    found: dict[SourceLine, bool] = {}
    for node, first in listed:
        if (isinstance(first, ast.Name) and first.id in sets) or _is_set(first):
            above = [parent for parent, _ in file.enclosing(node)]
            if any(isinstance(one, ast.Call) and last_word(one.func) in _WITHOUT_ORDER for one in above[:1]):
                continue
            function = next((one.name for one in above if isinstance(one, FunctionNode)), "<module>")
            given = any(isinstance(one, ast.Dict) and _says_params(one, node) for one in above)
            found[SourceLine(near, node.lineno, function)] = given
    return sorted(found, key=lambda line: (not found[line], line.line))


def _is_list_of_one(node: ast.Call) -> bool:
    return last_word(node.func) in ("list", "tuple") and len(node.args) == 1 and not node.keywords


def _named_sets(statement: ast.Assign) -> Iterator[str]:
    for target in statement.targets:
        pairs = [(target, statement.value)]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(target.elts, statement.value.elts, strict=False))
        yield from (name.id for name, value in pairs if isinstance(name, ast.Name) and _is_set(value))


def _is_set(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(value.left) or _is_set(value.right)
    return isinstance(value, ast.Set | ast.SetComp) or (
        isinstance(value, ast.Call) and last_word(value.func) in ("set", "frozenset")
    )


def _says_params(owner: ast.Dict, node: ast.AST) -> bool:
    return any(
        isinstance(key, ast.Constant) and key.value == "params" and any(inner is node for inner in ast.walk(value))
        for key, value in zip(owner.keys, owner.values, strict=True)
    )
