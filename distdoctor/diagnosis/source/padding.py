"""Where the user's source pads the samples of a batch to the longest of them. Pure `ast`.

longest = max(len(row) for row in rows)
inputs = pad_sequence(rows, batch_first=True)
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.source_line import SourceLine

_PADS = frozenset({"pad_sequence", "pad_packed_sequence"})
_LENGTHS = frozenset({"len", "shape", "size", "lengths", "lens"})


def padded_to_longest(sources: Mapping[str, str]) -> SourceLine:
    """The first line of the only function that does it; no line where none does, or several do."""
    program = program_of(sources)
    calls = [call for file in program.files for call in file.nodes(ast.Call) if _pads(call)]
    first = {scope.node: (scope, call) for call in reversed(calls) if (scope := program.scope_of(call))}
    if len(first) != 1:
        return SourceLine()
    scope, call = next(iter(first.values()))
    return scope.line(call)


def _pads(call: ast.Call) -> bool:
    name = last_word(call.func)
    return name in _PADS or (
        name == "max" and any(last_word(node) in _LENGTHS for one in call.args for node in ast.walk(one))
    )
