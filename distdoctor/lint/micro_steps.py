"""In which turns of a loop a condition holds: `(i + 1) % accumulate == 0`, played for the first turns and some lengths."""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from distdoctor.diagnosis.source.source_file import Loop, Scope, dotted, item_name, last_word, within
from distdoctor.lint.program import given_for, is_key
from distdoctor.lint.rank_conditions import Condition

LENGTHS = (2, 3, 4)  # micro-steps to an optimizer step, where the source leaves that open
TURNS = 12
_FAR = 10**6  # the length of a loader: not among the first turns
_OF_THE_JOB = {"is_initialized", "is_available", "get_world_size", "isinstance", "hasattr", "getattr"}
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True)
class Turn:
    """One turn of a loop: `index` is called `name`, `modulus` (as written) is `length`. `changing`: names bound in the loop."""

    name: str
    index: int
    modulus: str
    length: int
    changing: frozenset[str]


def counter_of(loop: Loop) -> str:
    """The name that counts a loop's turns from 0, "" when there is none: `i` of `for i, x in enumerate(...)`."""
    if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.Call):
        return ""
    word = last_word(loop.iter.func)
    if word in ("tqdm", "track") and loop.iter.args and isinstance(loop.iter.args[0], ast.Call):
        word = last_word(loop.iter.args[0].func)
    if (
        word == "enumerate"
        and len(loop.iter.args) == 1
        and not loop.iter.keywords
        and isinstance(loop.target, ast.Tuple)
    ):
        return dotted(loop.target.elts[0])
    return dotted(loop.target) if word == "range" and len(loop.iter.args) == 1 else ""


def modulus_of(conditions: Iterable[Condition]) -> str:
    """What all the conditions count by, as written; "" when that is not one and the same thing."""
    found = set()
    for node in (node for one in conditions for node in ast.walk(one.test)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            found.add(ast.unparse(node.right))
    return found.pop() if len(found) == 1 else ""


def holds(conditions: Iterable[Condition], turn: Turn) -> bool | None:
    """Whether all conditions let a turn through, as far as they ask for it; None when one asks in a way not understood here."""
    for one in conditions:
        answer = _truth(one.test, turn)
        if answer is None and not _same_in_all(one.test, turn):
            return None
        if answer is not None and answer is one.negated:
            return False
    return True


def turns(loop: Loop, modulus: str, scope: Scope) -> list[list[Turn]]:
    """The first turns of the loop, once for each length."""
    lengths = (int(modulus),) if modulus.isdecimal() else LENGTHS
    bound = (one for ones in scope.bindings.values() for one in ones if within(loop, one.statement, scope.file))
    changing = frozenset(one.name for one in bound)
    return [[Turn(counter_of(loop), index, modulus, length, changing) for index in range(TURNS)] for length in lengths]


def written_out(one: Condition, scope: Scope) -> Condition:
    """The condition with each name in it for what it is bound to, where that is one thing: `last`, `not last`, `% every`."""

    def meant(name: str) -> ast.expr | None:
        value = _only_value(name, scope)
        return value if isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Attribute) else None

    return replace(one, test=_with_names(one.test, meant))


def as_called(one: Condition, called: Scope, call: ast.Call, scope: Scope) -> Condition | None:
    """A condition of a function in the words of the scope that calls it; None where those do not say what it asks."""
    unknown: list[str] = []

    def meant(name: str) -> ast.expr | None:
        if name == "self" and dotted(call.func).startswith("self."):
            return None
        value = _only_value(name, called)
        if value is None and name in called.parameters and name not in called.bindings:
            value = given_for(call, called, name) or called.default_of(name)
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
            value = _item_given(value, called, call, scope)
        elif not (isinstance(value, ast.Attribute) and dotted(value).startswith("self.")):
            value = None
        if value is None and (name in called.parameters or name in called.bindings):
            unknown.append(name)
        return value

    test = _with_names(one.test, meant)
    return None if unknown else replace(one, test=test)


def _item_given(item: ast.Subscript, called: Scope, call: ast.Call, scope: Scope) -> ast.expr | None:
    """`i` of `info["turn"]` where the caller gives `info = {"turn": i}` and nobody changes it."""
    if item_name(item) in called.bindings or not isinstance(item.slice, ast.Constant):
        return None
    given = given_for(call, called, dotted(item.value))
    if dotted(given):
        if f"{dotted(given)}[{item.slice.value!r}]" in scope.bindings:
            return None
        given = _only_value(dotted(given), scope)
    pairs = zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ()
    return next((value for key, value in pairs if is_key(key, item.slice.value)), None)


def _only_value(name: str, scope: Scope) -> ast.expr | None:
    bound = scope.bindings.get(name, [])
    plain = len(bound) == 1 and bound[0].item < 0 and not bound[0].looped
    return bound[0].value if plain and not isinstance(bound[0].statement, ast.AugAssign) else None


def _with_names(test: ast.expr, meant: Callable[[str], ast.expr | None]) -> ast.expr:
    """A copy of the test with what each name means in its place."""

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return meant(node.id) or node

    made: ast.expr = Put().visit(copy.deepcopy(test))
    return made


def _same_in_all(test: ast.expr, turn: Turn) -> bool:
    """Whether a condition is about the job and not about the turn: nothing in it changes in the loop."""
    names = {dotted(node) for node in ast.walk(test) if isinstance(node, ast.Name | ast.Attribute)}
    calls = {last_word(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)}
    return not names & turn.changing and turn.name not in names and calls <= _OF_THE_JOB


def _truth(test: ast.expr, turn: Turn) -> bool | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, turn)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        answers = [_truth(part, turn) for part in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in answers:
            return decisive
        if not decisive:  # what is not about the turn may hold in any
            parts = zip(answers, test.values, strict=True)
            answers = [one for one, part in parts if one is not None or not _same_in_all(part, turn)]
        return None if None in answers else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = _number(test.left, turn), _number(test.comparators[0], turn)
        compared = _COMPARED.get(type(test.ops[0]))
        return None if left is None or right is None or compared is None else compared(left, right)
    number = _number(test, turn)
    return None if number is None else bool(number)


def _number(node: ast.expr, turn: Turn) -> int | None:
    if ast.unparse(node) == turn.modulus:
        return turn.length
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return turn.index if node.id == turn.name else None
    if isinstance(node, ast.Call):
        return _FAR if dotted(node.func) == "len" else None
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _number(node.left, turn), _number(node.right, turn)
        if left is None or right is None or (isinstance(node.op, ast.Mod) and right == 0):
            return None
        return _ARITHMETIC[type(node.op)](left, right)
    return None
