"""What the user's data set does with the epoch that it is told, by its source. Pure `ast`.

def set_epoch(self, epoch):
    self.epoch = epoch
def __iter__(self):                     # or __getitem__, and the methods that these call
    rng = random.Random(self.epoch)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.source.sampler_calls import DRAWING
from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

DEEPEST = 3  # objects within one another
_TELLING = ("__init__", "set_epoch")
_READING = ("__iter__", "__next__", "__getitem__", "__getitems__")


@dataclass(frozen=True)
class EpochUse:
    """`read`: where samples are made with what set_epoch changes; no line: they are not. `always`: whatever the data set has been
    told to be, else under a condition that asks the object itself."""

    read: SourceLine
    attribute: str = ""
    always: bool = False


def epoch_use(sources: Mapping[str, str], name: str, within: Sequence[str] = ()) -> EpochUse | None:
    """Of the class `name`, else of those `within` its object that have a set_epoch, else of the only class of data that has one;
    None where the source shows none."""
    program = program_of(sources)
    held = [one for one in within if _method(program, one, "set_epoch") is not None]
    kind = _class_told(program, name)
    told = [kind] if kind == name or (kind and not held) else held
    uses = [_use(program, one, held, DEEPEST) for one in told]
    return max(uses, key=_telling, default=None)


def handed_on(sources: Mapping[str, str]) -> SourceLine:
    """Where the one set_epoch of the user's own hands the epoch on, or begins, where it hands it to nobody; no line where there
    is none, or several."""
    program = program_of(sources)
    own = [one for one in program.scopes.values() if one.name == "set_epoch" and one.of_class]
    if len(own) != 1:
        return SourceLine()
    scope = own[0]
    calls = [call for call in scope.calls if last_word(call.func) == "set_epoch"]
    return scope.line(calls[0] if calls else scope.node)


def _telling(use: EpochUse) -> tuple[bool, bool]:
    return bool(use.read), use.always


def _use(program: UserProgram, kind: str, held: Sequence[str], steps: int) -> EpochUse:
    told, reading = _reached(program, kind, "set_epoch"), _reached(program, kind, *_reading(program, kind))
    changed = {node.attr for scope in told for node in _own(scope, ast.Store)}
    passed = {node.attr: node for scope in told for node in _own(scope, ast.Load) if _is_told(program, node)}
    for attribute, node in passed.items():
        made = [one for one in sorted(program.classes_of(node)) if _method(program, one, "set_epoch") is not None]
        inner = made or held
        uses = [_use(program, one, held, steps - 1) for one in inner if one != kind and steps]
        if any(use.read for use in uses):
            return max(uses, key=_telling)
        if not inner:  # somebody else's class
            changed.add(attribute)
    changed -= {node.attr for scope in reading for node in _own(scope, ast.Store)}  # it counts by itself
    found = [
        EpochUse(scope.line(node), node.attr, always and not _asks_itself(program, node))
        for scope, always in reading.items()
        for node in _own(scope, ast.Load)
        if node.attr in changed
    ]
    return max(found, key=lambda use: use.always, default=EpochUse(SourceLine()))


def _reading(program: UserProgram, kind: str) -> Sequence[str]:
    """The methods by which samples are made: of what is no data, all of them."""
    if any(_method(program, kind, name) is not None for name in _READING):
        return _READING
    return [name for name in program.functions if name not in _TELLING and _method(program, kind, name) is not None]


def _is_told(program: UserProgram, node: ast.AST) -> bool:
    """Whether an attribute of the object is told the epoch in turn: `self.order.set_epoch(epoch)`, `self.order.epoch = epoch`."""
    outer = program.parents[node]
    return isinstance(outer, ast.Attribute) and (isinstance(outer.ctx, ast.Store) or outer.attr == "set_epoch")


def shuffles_by_epoch(sources: Mapping[str, str], name: str) -> bool:
    """Whether the `__iter__` of a class of this name, or a method that it calls, draws an order, and something in them is named
    after the epoch."""
    reached = _reached(program_of(sources), name, "__iter__")
    words = {last_word(node) for scope in reached for node in ast.walk(scope.node)}
    return bool(words & DRAWING) and any("epoch" in word.lower() for word in words)


def _class_told(program: UserProgram, name: str) -> str:
    """The class itself where it has a set_epoch; else, of a wrapper, the only class of data that has one."""
    if _method(program, name, "set_epoch") is not None:
        return name
    having = {scope.of_class for scope in program.functions.get("set_epoch", ())}
    data = [kind for kind in having if _is_data(program, kind)]
    return data[0] if len(data) == 1 else ""


def _is_data(program: UserProgram, kind: str) -> bool:
    named = any("Dataset" in last_word(base) for base in program.classes.get(kind, ()))
    return named or _method(program, kind, "__getitem__") is not None


def _method(program: UserProgram, kind: str, name: str) -> Scope | None:
    """The method that an object of a class has, of the class itself or of the nearest base."""
    waiting, seen = [kind], set[str]()
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        for scope in program.functions.get(name, ()):
            if scope.of_class == one:
                return scope
        waiting += map(last_word, program.classes.get(one, ()))
    return None


def _reached(program: UserProgram, kind: str, *names: str) -> dict[Scope, bool]:
    """These methods of a class and those of its own that they call or read -> whether they always do."""
    found = {scope: True for name in names if (scope := _method(program, kind, name)) is not None}
    waiting = [*found]
    while waiting:
        scope = waiting.pop()
        for node in _own(scope, ast.Load):
            always = found[scope] and not _asks_itself(program, node)
            one = _method(program, kind, node.attr)
            if one is not None and (one not in found or (always and not found[one])):
                found[one] = always
                waiting.append(one)
    return found


def _own(scope: Scope, context: type[ast.expr_context]) -> Iterator[ast.Attribute]:
    """The attributes of the object itself that a method reads, or binds."""
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, context) and last_word(node.value) == "self":
            yield node


def _asks_itself(program: UserProgram, node: ast.AST) -> bool:
    """Whether a node stands under a condition about the object itself, `if self.shuffle:`, or below one that leaves before it."""
    for parent, child in program.above(node):
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test and _is_of_self(parent.test):
            return True
        body = getattr(parent, "body", None)
        above = body[: body.index(child)] if isinstance(body, list) and child in body else []
        if any(isinstance(one, ast.If) and _is_of_self(one.test) and _leaves(one) for one in above):
            return True
    return False


def _is_of_self(test: ast.expr) -> bool:
    return any(last_word(one) == "self" for one in ast.walk(test))


def _leaves(branch: ast.If) -> bool:
    return any(isinstance(one, ast.Return | ast.Continue) for one in ast.walk(branch))
