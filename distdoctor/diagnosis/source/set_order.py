"""Loops over a set of texts: the order in which a process goes through it depends on the hash seed of that process.

Pure `ast`. Only what is plainly a set of texts counts: written out, or made of the names of parameters or of what a text was
split into. What is sorted, a list or a dict has an order of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.call_edits import calls_at, node_replaced
from distdoctor.diagnosis.source.deciding import program_of
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.source_file import last_word, lineno
from distdoctor.diagnosis.source.user_program import UserProgram
from distdoctor.recording.recording import SourceLine

STEPS = 6  # from the loop to where the set is made
_KEEPS_ORDER = frozenset({"list", "tuple", "enumerate", "iter", "tqdm", "copy"})  # of what they are given
_SETS = frozenset({"set", "frozenset"})
_TEXTS = frozenset(
    {"split", "splitlines", "named_parameters", "named_buffers", "named_modules", "state_dict", "listdir"}
)
_OF_SETS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
_BOTH = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)


@dataclass(frozen=True)
class SetLoop:
    """A loop over a set of texts in which a collective is called with what belongs to the element. `size` 0: not known."""

    loop: SourceLine
    made: SourceLine
    text: str  # what is gone through, as it is written
    size: int
    edits: tuple[Edit, ...]  # that put it in order


def set_loop_around(sources: Mapping[str, str], site: SourceLine, operation: str) -> SetLoop | None:
    """The loop over a set in which the collective of a line is called, with something that depends on the element."""
    if not any(word in text for text in sources.values() for word in ("set(", "{")):
        return None
    program = program_of(sources)
    for call in calls_at(sources, site, operation)[-1:]:
        for loop, _ in program.above(call):
            if not isinstance(loop, ast.For) or not _depends(call, loop):
                continue
            made = _set_of_texts(program, loop.iter, STEPS)
            if made is not None:
                return _found(program, site, loop, made)
    return None


def _found(program: UserProgram, site: SourceLine, loop: ast.For, made: ast.expr) -> SetLoop:
    text = ast.unparse(loop.iter)
    size = len(made.elts) if isinstance(made, ast.Set) else 0
    scope = program.scope_of(made)
    return SetLoop(
        SourceLine(site.path, loop.lineno, site.function),
        SourceLine(scope.path, lineno(made), scope.traceback_name),
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


def _set_of_texts(program: UserProgram, value: ast.expr, steps: int) -> ast.expr | None:
    """Where the set is made that an expression is, None when it is none, or may be something else."""
    if steps == 0:
        return None
    if isinstance(value, ast.Set):
        return value if all(_is_text(one) for one in value.elts) else None
    if isinstance(value, ast.SetComp):
        return value if any(_gives_texts(one.iter) for one in value.generators) else None
    if isinstance(value, ast.BinOp) and isinstance(value.op, _BOTH):
        return _set_of_texts(program, value.left, steps - 1) or _set_of_texts(program, value.right, steps - 1)
    if isinstance(value, ast.Call):
        return _of_call(program, value, steps)
    if isinstance(value, ast.Name | ast.Attribute):
        made = [_set_of_texts(program, one, steps - 1) for one in _values(program, value)]
        return made[0] if made and all(made) else None
    return None


def _of_call(program: UserProgram, call: ast.Call, steps: int) -> ast.expr | None:
    name = last_word(call.func)
    if name in _SETS and len(call.args) == 1:
        return call if _gives_texts(call.args[0]) else _set_of_texts(program, call.args[0], steps - 1)
    if name in _KEEPS_ORDER and call.args and isinstance(call.func, ast.Name):
        return _set_of_texts(program, call.args[0], steps - 1)
    if name in _OF_SETS and isinstance(call.func, ast.Attribute):
        return _set_of_texts(program, call.func.value, steps - 1)
    return None


def _values(program: UserProgram, value: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """Everything that a variable or an attribute may hold."""
    if isinstance(value, ast.Attribute):
        owners = program.classes_of(value.value)
        yield from (one for node, one in program.stores(value.attr, None) if program.scope_of(node).of_class in owners)
        return
    scope = program.scope_of(value)
    yield from (one for node, one in program.stores(value.id, scope) if _is_kept_as(node, value.id))
    yield from program.arguments(scope, value.id)


def _is_kept_as(statement: ast.AST, name: str) -> bool:
    """Whether a statement gives a value to the variable of this name, not to an attribute that is called alike."""
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(statement))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _gives_texts(node: ast.expr) -> bool:
    """Whether going through an expression plainly gives texts, or pairs that begin with one."""
    if isinstance(node, ast.List | ast.Tuple):
        return bool(node.elts) and all(_is_text(one) for one in node.elts)
    if isinstance(node, ast.Dict):
        return bool(node.keys) and all(key is not None and _is_text(key) for key in node.keys)
    return any(isinstance(one, ast.Call) and last_word(one.func) in _TEXTS for one in ast.walk(node))
