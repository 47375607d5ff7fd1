"""Where the user's source changes weights in place on some ranks only. Pure `ast`.

if rank == 0:
    ema.update(model)  # whose body copies the average back into the model

if rank == 0:
    hooks.append(KeepBest())  # whose methods load older weights, wherever they are called
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import NamedTuple

from distdoctor.diagnosis.source.rank_guard import Guard, guards_at
from distdoctor.diagnosis.source.source_file import Scope, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.diagnosis.source.writes import is_in_place
from distdoctor.recording.recording import SourceLine

DEEPEST = 3  # calls from the line under the condition to the one that writes
_WEIGHTS = ("parameters(", "state_dict", ".weight", ".bias", ".data")
_OTHERS = ("sched", "scaler", "optim")  # whose states are no weights


class Edited(NamedTuple):
    """The condition, the line under it, and where that only makes the object which changes weights, the line that does."""

    guard: Guard
    line: SourceLine
    by: SourceLine = SourceLine()


def edited_on(sources: Mapping[str, str], ranks: Collection[int], others: Collection[int]) -> Edited | None:
    """The line that changes weights in place, and the condition that lets only `ranks` of all these come there; where there is no
    such line, one that makes an object whose methods do. None where there is no such condition, or several."""
    program = program_of(sources)
    calls = [call for file in program.files for call in file.nodes(ast.Call)]
    for direct in (True, False):
        found: dict[tuple[str, int], Edited] = {}
        for call in calls:
            by = None if direct else _edit_of_made(program, call)
            if by is not None or (direct and _edits(program, call, DEEPEST, set())):
                line = program.scope_of(call).line(call)
                for guard in guards_at(sources, line):
                    if guard.lets_only(ranks, others):
                        one = Edited(guard, line, by or SourceLine())
                        known = found.setdefault((line.path, guard.line), one)
                        found[line.path, guard.line] = min(
                            known, one, key=lambda one: abs(one.line.line - one.guard.line)
                        )
        if found:
            return next(iter(found.values())) if len(found) == 1 else None
    return None


def _edit_of_made(program: UserProgram, call: ast.Call) -> SourceLine | None:
    """Where an object that a call makes changes weights later on."""
    name = last_word(call.func)
    scopes = (one for one in program.scopes.values() if one.of_class == name) if name in program.classes else ()
    later = (scope for scope in scopes if scope.name not in ("__init__", "__post_init__"))
    edits = (
        scope.line(node)
        for scope in later
        for node in program.inside(scope)
        if isinstance(node, ast.Call) and _edits(program, node, DEEPEST, set())
    )
    return next(edits, None)


def _edits(program: UserProgram, call: ast.Call, steps: int, seen: set[Scope]) -> bool:
    if is_in_place(last_word(call.func)) and ".grad" not in (text := _around(program, call)):
        return any(word in text for word in _WEIGHTS) and not last_word(call.func).startswith("clip_grad")
    if last_word(call.func) == "load_state_dict":
        return not any(word in ast.unparse(call.func).lower() for word in _OTHERS)
    for scope in program.targets(call) if steps else ():
        if scope not in seen:
            seen.add(scope)
            inner = (node for node in program.inside(scope) if isinstance(node, ast.Call))
            if any(_edits(program, one, steps - 1, seen) for one in inner):
                return True
    return False


def _around(program: UserProgram, call: ast.Call) -> str:
    """The outermost loop around a call in its function, else the call, as text."""
    found: ast.AST = call
    node: ast.AST = call
    while node in program.parents and node not in program.scopes:
        node = program.parents[node]
        if isinstance(node, ast.For | ast.AsyncFor):
            found = node
    return ast.unparse(found)
