"""Keys of a store: the call that waits for one, and the lines that set such keys. Pure `ast`.

verdict = store.get(f"verdict/{epoch}")      # waits until somebody sets it
store.set(f"verdict/{epoch}", words)         # which one side does on some of its paths only
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.given_values import Line, lines_of_way
from distdoctor.diagnosis.source.rank_local import Hop, origin
from distdoctor.diagnosis.source.source_file import dotted, last_word, lineno
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_WAITING, _SETTING = (
    frozenset({"get", "wait", "multi_get"}),
    frozenset({"set", "add", "append", "multi_set", "compare_set"}),
)
_NO_STORE = frozenset({"os", "dict"})
LONGEST_KEY, MOST_LINES = 60, 4


def key_made_of(sources: Mapping[str, str], site: SourceLine) -> tuple[Hop, ...]:
    """The lines by which the name of the key that a line waits for becomes a process's own; none where nothing tells."""
    program = program_of(sources)
    waits = _waits_at(program, site)
    if len(waits) != 1 or not waits[0].args:
        return ()
    found = origin(program, waits[0].args[0])
    return found.way[1:] if found.weight > 0 else ()


def _waits_at(program: UserProgram, site: SourceLine) -> list[ast.Call]:
    calls = [call for file in program.files if file.path == site.path for call in file.nodes(ast.Call)]
    return [
        call for call in calls if lineno(call) <= site.line <= (call.end_lineno or 0) and _is_of_store(call, _WAITING)
    ]


def awaited_key(sources: Mapping[str, str], site: SourceLine) -> tuple[str, list[Line]] | None:
    """(the key as it is written, where keys of a store are set, and what calls the functions that do) for a line that waits for
    one; None where it waits for none, by the names that the source uses."""
    program = program_of(sources)
    waits = _waits_at(program, site)
    if len(waits) != 1 or not waits[0].args:
        return None
    setting = [call for file in program.files for call in file.nodes(ast.Call) if _is_of_store(call, _SETTING)]
    callers = [node for call in setting for node in _callers(program, call)]
    keys = waits[0].args[0]
    key = ast.unparse(keys.elts[0] if isinstance(keys, ast.List | ast.Tuple) and len(keys.elts) == 1 else keys)
    return key[:LONGEST_KEY], lines_of_way(program, [*setting, *callers])[:MOST_LINES]


def _is_of_store(call: ast.Call, names: frozenset[str]) -> bool:
    """Whether a method of these names is called on what is called a store."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in names:
        return False
    owner = last_word(call.func.value) or last_word(getattr(call.func.value, "func", None))
    return "store" in owner.lower() and dotted(call.func).partition(".")[0] not in _NO_STORE


def _callers(program: UserProgram, call: ast.Call) -> list[ast.AST]:
    """The calls of the function that does nothing else than set a key."""
    scope = program.scope_of(call)
    body = getattr(scope.node, "body", [])
    short = scope.name and isinstance(body, list) and len(body) <= 3
    return list(program.callers.get(scope, ())) if short else []
