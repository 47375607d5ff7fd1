"""Where the user's source begins, reads and moves a counter, `ModelEMA.updates`. Pure `ast`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import Scope, last_word, source_file
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.source_line import SourceLine

_SHOWN = frozenset({"state_dict", "__repr__", "__str__"})


def begun_at(sources: Mapping[str, str], counter: str) -> SourceLine:
    """The line of `__init__` that sets a counter."""
    lines = [scope.line(node) for scope, node in _written(sources, counter) if scope.name == "__init__"]
    return lines[0] if lines else SourceLine()


def is_read(sources: Mapping[str, str], counter: str) -> bool:
    """Whether its class does more with a counter than to count: it reads it somewhere."""
    kind, _, name = counter.partition(".")
    return any(
        node.attr == name
        and isinstance(node.ctx, ast.Load)
        and file.scope_of[node].of_class == kind
        and file.scope_of[node].name not in _SHOWN
        for file in program_of(sources).files
        for node in file.attributes
    )


def moved_after(sources: Mapping[str, str], load: SourceLine, counter: str) -> SourceLine:
    """The last line below a load, in its function and in no loop that does more, which calls what moves this counter; without a
    class of the user's, what moves torch's schedules."""
    file = source_file(sources, load.path)
    if file is None:
        return SourceLine()
    movers = {scope.name for scope, _ in _written(sources, counter)} - {"__init__"} or {"step"}
    calls = (node for node in ast.walk(file.function_at(load.line)) if isinstance(node, ast.Call))
    below = [one for one in calls if one.lineno > load.line and last_word(one.func) in movers]
    lines = [one.lineno for one in below if all(len(loop.body) == 1 for loop in file.loops_around(one))]
    return SourceLine(load.path, max(lines), load.function) if lines else SourceLine()


def _written(sources: Mapping[str, str], counter: str) -> list[tuple[Scope, ast.AST]]:
    kind, _, name = counter.partition(".")
    fields = (file.fields.get(kind, {}).get(f"self.{name}", ()) for file in program_of(sources).files)
    return [(scope, binding.statement) for found in fields for binding, scope in found]
