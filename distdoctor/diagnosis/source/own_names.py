"""Names that each process makes for itself: of its clock, or of a random word. Pure `ast`."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from distdoctor.diagnosis.source.source_file import dotted, last_word
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.recording.recording import SourceLine

CLOCKS = frozenset({"strftime", "time_ns", "now", "utcnow", "today", "ctime"})
RANDOM = frozenset({"uuid1", "uuid4", "token_hex", "token_urlsafe"})
# What is written for people to read names nothing.
_SAYING = frozenset({"print", "info", "debug", "warning", "error", "log", "write", "basicConfig", "Formatter"})


def names_made(sources: Mapping[str, str], words: frozenset[str]) -> list[SourceLine]:
    """The lines that put the result of a function of these names into a text."""
    found = []
    for file in program_of(sources).files:
        for call in file.nodes(ast.Call):
            if last_word(call.func) not in words and not (words is CLOCKS and dotted(call.func) == "time.time"):
                continue
            above = [node for node, _ in file.enclosing(call)]
            is_text = last_word(call.func) == "strftime" or any(_makes_text(node) for node in above)
            said = any(isinstance(node, ast.Call) and last_word(node.func) in _SAYING for node in above)
            compared = any(
                isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) for node in above
            )  # how long it took
            if is_text and not said and not compared:
                scope = program_of(sources).scope_of(call)
                found.append(scope.line(call))
    return sorted(set(found), key=lambda line: (line.path, line.line))


def _makes_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Call) and last_word(node.func) in ("str", "format", "join", "Path", "isoformat")
    )
