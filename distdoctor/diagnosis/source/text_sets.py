"""Where an expression is plainly a set; of texts the order is another one in every process (PYTHONHASHSEED)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.user_program import UserProgram, stores_variable

STEPS = 6  # from the loop to where the set is made
_KEEPS_ORDER = frozenset({"list", "tuple", "enumerate", "iter", "tqdm", "copy"})  # of what they are given
_SETS = frozenset({"set", "frozenset"})
_TEXTS = frozenset(
    {"split", "splitlines", "named_parameters", "named_buffers", "named_modules", "state_dict", "listdir"}
)
_OF_SETS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
_BOTH = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)


def set_of_texts(program: UserProgram, value: ast.expr) -> ast.expr | None:
    """Where the set of texts is made that an expression is, None when it is none, or may be something else."""
    return _set(program, value, STEPS, texts=True)


def set_of_anything(program: UserProgram, value: ast.expr) -> ast.expr | None:
    """The same of a set, whatever is in it: for where the orders are known to differ."""
    return _set(program, value, STEPS, texts=False)


def _set(program: UserProgram, value: ast.expr, steps: int, *, texts: bool) -> ast.expr | None:
    if steps == 0:
        return None
    if isinstance(value, ast.Set):
        return value if not texts or all(_is_text(one) for one in value.elts) else None
    if isinstance(value, ast.SetComp):
        gives = (_gives_texts(one.iter) or _set(program, one.iter, steps - 1, texts=texts) for one in value.generators)
        return value if not texts or any(gives) else None
    if isinstance(value, ast.BinOp) and isinstance(value.op, _BOTH):
        both = (_set(program, side, steps - 1, texts=texts) for side in (value.left, value.right))
        return next((made for made in both if made is not None), None)
    if isinstance(value, ast.Call):
        return _of_call(program, value, steps, texts=texts)
    if isinstance(value, ast.Name | ast.Attribute):
        made = [_set(program, one, steps - 1, texts=texts) for one in _values(program, value)]
        return made[0] if made and all(made) else None
    return None


def _of_call(program: UserProgram, call: ast.Call, steps: int, *, texts: bool) -> ast.expr | None:
    name = last_word(call.func)
    if name in _SETS and len(call.args) == 1:
        plain = not texts or _gives_texts(call.args[0])
        return call if plain else _set(program, call.args[0], steps - 1, texts=texts)
    if name in _KEEPS_ORDER and call.args and isinstance(call.func, ast.Name):
        return _set(program, call.args[0], steps - 1, texts=texts)
    if name in _OF_SETS and isinstance(call.func, ast.Attribute):
        return _set(program, call.func.value, steps - 1, texts=texts)
    returned = [one for target in program.targets(call)[:3] for one in program.returned(target)]
    made = [_set(program, one, steps - 1, texts=texts) for one in returned]
    return made[0] if made and all(made) else None


def _values(program: UserProgram, value: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """Everything that a variable or an attribute may hold."""
    if isinstance(value, ast.Attribute):
        owners = program.classes_of(value.value)
        yield from (one for node, one in program.stores(value.attr, None) if program.scope_of(node).of_class in owners)
        return
    scope = program.scope_of(value)
    stores = (one for one in program.stores(value.id, scope) if not _takes_out(one[0]))
    for node, one in stores:
        if stores_variable(node, value.id):
            yield from _taken_apart(program, node, one, value.id)
    yield from program.arguments(scope, value.id)


def _taken_apart(program: UserProgram, statement: ast.AST, value: ast.expr, name: str) -> Iterator[ast.expr]:
    """What a variable is given; of `rows, names = load()` what the function returns at its place, where it returns tuples."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Call):
        yield value
        return
    at = next((n for n, one in enumerate(target.elts) if isinstance(one, ast.Name) and one.id == name), None)
    returned = [one for scope in program.targets(value)[:3] for one in program.returned(scope)]
    for one in returned or [value]:
        fits = isinstance(one, ast.Tuple) and len(one.elts) == len(target.elts) and at is not None
        yield one.elts[at] if fits and isinstance(one, ast.Tuple) and at is not None else one


def _takes_out(statement: ast.AST) -> bool:
    """Whether what a statement leaves of a set are elements that it had: `names -= frozen`."""
    return isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Sub | ast.BitAnd)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _gives_texts(node: ast.expr) -> bool:
    """Whether going through an expression plainly gives texts, or pairs that begin with one."""
    if isinstance(node, ast.List | ast.Tuple):
        return bool(node.elts) and all(_is_text(one) for one in node.elts)
    if isinstance(node, ast.Dict):
        return bool(node.keys) and all(key is not None and _is_text(key) for key in node.keys)
    return any(isinstance(one, ast.Call) and last_word(one.func) in _TEXTS for one in ast.walk(node))
