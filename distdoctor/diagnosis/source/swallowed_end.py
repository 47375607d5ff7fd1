"""Where a program asks a source of data for the next batch and keeps to itself whatever goes wrong there. Pure `ast`.

try:
    self.last = next(self.source)
except Exception:                # a generator that has raised is dead, and its end is an exception, too
    log.debug("bridged")
return self.last
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import last_word
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.source_line import SourceLine

_BROAD = frozenset({"Exception", "BaseException"})


def errors_kept_at_next(sources: Mapping[str, str]) -> SourceLine:
    """The handler, where there is one; none where there are several."""
    program, found = program_of(sources), list[SourceLine]()
    for file in program.files:
        for tried in file.nodes(ast.Try):
            asks = any(_asks_for_next(node) for statement in tried.body for node in ast.walk(statement))
            for handler in tried.handlers if asks else ():
                if _is_broad(handler) and not isinstance(handler.body[-1], ast.Raise):
                    found.append(program.scope_of(handler).line(handler))
    return found[0] if len(found) == 1 else SourceLine()


def _asks_for_next(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_word(node.func) in ("next", "__next__")


def _is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or last_word(kind) in _BROAD for kind in kinds)
