"""Schedules that are handed to accelerate, which moves each of them once for every process in every step of the optimizer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.source_file import Binding, Scope, SourceFile, last_word, lineno, source_file
from distdoctor.recording.source_line import SourceLine

# Those that fall until their length is over, and are then done. Not those that begin anew (cycles, warm restarts) or never end.
_ENDS = re.compile(
    r"^(CosineAnnealingLR|OneCycleLR|PolynomialLR|LinearLR|LambdaLR|get_scheduler"
    r"|get_(cosine|linear|polynomial_decay|cosine_with_min_lr)_schedule_with_warmup)$"
)
_GOES_ON = re.compile(r"constant|restart|cycl|inverse", re.IGNORECASE)  # by the name that get_scheduler is given
_NUMBERS = frozenset({"int", "len", "ceil", "floor", "round", "max", "min"})  # what calls make that lengths are made of
MOST_PARTS = 20  # of a length that are read
_PREPARING = ("prepare", "prepare_scheduler")
# What makes accelerate move a schedule once a step after all (`split_batches`, `step_scheduler_with_optimizer`), and what says
# that somebody has thought of the processes.
_OTHERWISE = ("split_batches", "step_scheduler_with_optimizer", "adjust_scheduler")
_OF_PROCESSES = re.compile(r"process|world|gpu|device|replica|\brank|nproc", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class PreparedSchedule:
    """`given` is what `prepared` is handed: the schedule that `made` makes."""

    prepared: ast.Call
    given: ast.expr
    made: ast.Call
    scope: Scope


def prepared_schedules(file: SourceFile) -> Iterator[PreparedSchedule]:
    """Those with an end that a file makes and has prepared, and goes on with."""
    if "accelerat" not in file.text or any(word in file.text for word in _OTHERWISE):
        return
    for scope in file.scopes:
        for call in scope.calls:
            used = not isinstance(file.parent.get(call), ast.Expr)
            if isinstance(call.func, ast.Attribute) and call.func.attr in _PREPARING and used:
                for given in call.args:
                    made = _made(given, scope)
                    if made is not None and _ends(made):
                        yield PreparedSchedule(call, given, made, scope)


def counts_processes(node: ast.AST) -> bool:
    """Whether an expression has a word for the number of processes in it, but for one that it is divided by."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv):
        return counts_processes(node.left)
    if isinstance(node, ast.Name | ast.Attribute):
        return bool(_OF_PROCESSES.search(ast.unparse(node)))
    return any(counts_processes(one) for one in ast.iter_child_nodes(node))


def given_length(made: ast.Call) -> list[ast.expr]:
    """What a schedule is given besides its optimizer."""
    return [*made.args[1:], *(word.value for word in made.keywords if word.arg != "optimizer")]


def is_number(value: ast.expr) -> bool:
    """Whether a value may be a number of steps, or of a part of them: not what other calls make."""
    return not isinstance(value, ast.Call) or last_word(value.func) in _NUMBERS


def bound_before(name: str, node: ast.AST, scope: Scope) -> Binding | None:
    """The last thing that a name is bound to above a node, in the function that the node stands in."""
    above = [one for one in scope.bindings.get(name, ()) if lineno(one.statement) < lineno(node)]
    return max(above, key=lambda one: lineno(one.statement), default=None)


def prepared_in(sources: Mapping[str, str], path: str) -> SourceLine:
    """The line of a file that has a schedule prepared, where nothing shows that its length counts the processes."""
    file = source_file(sources, path)
    for one in prepared_schedules(file) if file is not None else ():
        if not any(counts_processes(part) for part in _parts(one.made, one.scope)):
            return SourceLine(path, lineno(one.prepared), one.scope.name)
    return SourceLine()


def _parts(made: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """What the schedule is given, and what the names in it stand for, as far as its function shows."""
    waiting = given_length(made)
    for _ in range(MOST_PARTS):
        if not waiting:
            return
        part = waiting.pop(0)
        yield part
        for name in (one.id for one in ast.walk(part) if isinstance(one, ast.Name)):
            bound = bound_before(name, part, scope)
            if bound is not None and not bound.looped and bound.item < 0 and is_number(bound.value):
                waiting.append(bound.value)


def _made(given: ast.expr, scope: Scope) -> ast.Call | None:
    if isinstance(given, ast.Name):
        bound = bound_before(given.id, given, scope)
        given = bound.value if bound is not None and bound.item < 0 and not bound.looped else given
    return given if isinstance(given, ast.Call) else None


def _ends(made: ast.Call) -> bool:
    word = last_word(made.func)
    if not _ENDS.search(word) or any(one.arg in ("num_cycles", None) for one in made.keywords):
        return False
    if word == "LambdaLR":
        return _falls(made)
    names = [*(made.args[:1] if word == "get_scheduler" else ()), *(k.value for k in made.keywords if k.arg == "name")]
    return not any(_GOES_ON.search(ast.unparse(one)) for one in names)


def _falls(made: ast.Call) -> bool:
    """Whether what is written there may be a straight line; nothing is known of a function, nor of what comes back."""
    shapes = [one for one in given_length(made) if isinstance(one, ast.Lambda)]
    back = [n for one in shapes for n in ast.walk(one) if isinstance(n, ast.Mod) or last_word(n) in ("cos", "sin")]
    return bool(shapes) and not back
