"""How long a schedule is made, where that is counted in the batches of one process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.diagnosis.source.prepared_schedules import (
    PreparedSchedule,
    bound_before,
    counts_processes,
    given_length,
    is_number,
    prepared_schedules,
)
from distdoctor.diagnosis.source.source_file import Scope, dotted, keyword, opaque
from distdoctor.lint.program import ACCELERATOR, ParsedFiles, given_for

_DEPTH = 4  # through names and parameters
_ACCUMULATING = ("gradient_accumulation_steps", "gradient_accumulation_plugin")
# What says, or may say, that a schedule moves once a step.
_CONFIGURED = ("split_batches", "step_scheduler_with_optimizer", "dataloader_config")


def moved_too_often(program: ParsedFiles) -> Iterator[tuple[PreparedSchedule, ast.Call, Scope]]:
    """Schedules that accelerate moves once for every process, with the `len(loader)` that counts the batches of one of them."""
    for file in program.files:
        for one in prepared_schedules(file):
            length = _Length(program)
            for part in given_length(one.made):
                length.read(part, one.scope, _DEPTH)
            if length.counted and not length.by_process and _moves_for_each(one, length, program):
                yield (one, *length.counted[0])


class _Length:
    """What the length of a schedule is made of. `counted`: calls of len() on a prepared loader; `by_process`: not only of these,
    or of the number of processes as well."""

    def __init__(self, program: ParsedFiles) -> None:
        self.program = program
        self.counted: list[tuple[ast.Call, Scope]] = []
        self.by_process = self.divided = False

    def read(self, node: ast.expr, scope: Scope, depth: int) -> None:
        self.by_process |= counts_processes(node)
        for one in ast.walk(node):
            self.divided |= isinstance(one, ast.Div | ast.FloorDiv)
            if isinstance(one, ast.Call) and dotted(one.func) == "len" and one.args:
                if _is_prepared(one.args[0], one, scope, self.program, _DEPTH):
                    self.counted.append((one, scope))
                else:
                    self.by_process = True  # of all processes together, or nobody knows
            elif isinstance(one, ast.Name) and depth:
                for value, where in _values(one, scope, self.program):
                    self.read(value, where, depth - 1)


def _values(name: ast.Name, scope: Scope, program: ParsedFiles) -> Iterator[tuple[ast.expr, Scope]]:
    """What a name of a number stands for: above it in its function, or as the callers give it."""
    bound = bound_before(name.id, name, scope)
    if bound is not None:
        if is_number(bound.value) and not bound.looped and bound.item < 0:
            yield bound.value, scope
    elif name.id in scope.parameters:
        for site in program.callers(scope):
            given = given_for(site.call, scope, name.id)
            if given is not None:
                yield given, site.scope


def _is_prepared(loader: ast.expr, at: ast.AST, scope: Scope, program: ParsedFiles, depth: int) -> bool:
    """Whether a loader is one that accelerate has made this process's own, when its length is taken."""
    name = dotted(loader)
    if not name or not depth:
        return False
    bound = bound_before(name, at, scope)
    if bound is None and name.startswith("self."):
        known = program.bindings(name, scope)
        return bool(known) and all(_is_preparing(one.value, where, program) for one, where in known)
    if bound is not None:
        return not bound.looped and _is_preparing(bound.value, scope, program)
    sites = program.callers(scope) if name in scope.parameters else []
    given = [(given_for(site.call, scope, name), site) for site in sites]
    return bool(given) and all(
        one is not None and _is_prepared(one, site.call, site.scope, program, depth - 1) for one, site in given
    )


def _is_preparing(value: ast.expr, scope: Scope, program: ParsedFiles) -> bool:
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    prepares = value.func.attr in ("prepare", "prepare_data_loader")
    return prepares and ACCELERATOR in program.kinds(value.func.value, scope)


def _moves_for_each(one: PreparedSchedule, length: _Length, program: ParsedFiles) -> bool:
    """Whether the accelerator is known, and known to move a schedule for every process in every step that the length counts."""
    assert isinstance(one.prepared.func, ast.Attribute)
    made = program.made(one.prepared.func.value, one.scope)
    if not made or any(this.kind != ACCELERATOR or opaque(this.call) for this in made):
        return False
    if any(keyword(this.call, word) is not None for this in made for word in _CONFIGURED):
        return False
    accumulates = any(keyword(this.call, word) is not None for this in made for word in _ACCUMULATING)
    return length.divided or not accumulates
