"""What a rank that sleeps between two looks waits for: the condition of its loop, or what fails until it succeeds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.source_file import FunctionNode, SourceFile, last_word, lineno, source_file
from distdoctor.recording.recording import SourceLine

LONGEST_TEXT = 80
_TRAINING = ("backward", "manual_backward", "zero_grad")


@dataclass(frozen=True)
class Polled:
    """A loop goes on because of what `goes_on` says; `line` is where that is asked. `text` is what is asked, as it is written."""

    line: int
    text: str
    goes_on: str


def polled_at(sources: Mapping[str, str], site: SourceLine) -> Polled | None:
    """What the innermost `while` around a line waits for; None where no such loop is around it, or it does not tell."""
    file = source_file(sources, site.path)
    if file is None:
        return None
    inside = [node for node in file.nodes(ast.stmt, ast.ExceptHandler) if _holds(node, site.line)]
    loop = next((node for node in inside[::-1] if isinstance(node, ast.While | FunctionNode)), None)
    if not isinstance(loop, ast.While) or _trains(loop):
        return None
    if not isinstance(loop.test, ast.Constant):
        text = _text(loop.test)
        return Polled(lineno(loop.test), text, f"`{text}` still holds")
    handler = next(
        (node for node in inside[::-1] if isinstance(node, ast.ExceptHandler) and node.lineno > loop.lineno), None
    )
    if handler is not None:
        return _tried(file, handler)
    leaving = (one for one in loop.body if isinstance(one, ast.If) and _leaves(one.body))
    asked = next(leaving, None)
    return (
        Polled(asked.lineno, _text(asked.test), f"`{_text(asked.test)}` does not hold") if asked is not None else None
    )


def _tried(file: SourceFile, handler: ast.ExceptHandler) -> Polled | None:
    """The first call of the block whose failure is caught."""
    block = file.parent.get(handler)
    calls = [node for one in getattr(block, "body", []) for node in ast.walk(one) if isinstance(node, ast.Call)]
    if not calls:
        return None
    inner = max(
        calls[:1] + [one for one in ast.walk(calls[0]) if isinstance(one, ast.Call)], key=lambda one: one.col_offset
    )
    kind = ast.unparse(handler.type) if handler.type is not None else "an exception"
    return Polled(lineno(inner), _text(inner), f"`{_text(inner)}` still raises {kind}")


def _trains(loop: ast.While) -> bool:
    """Whether a turn is a step of training: a sleep in it is a pause, and what ends the loop is not waited for."""
    return any(isinstance(node, ast.Call) and last_word(node.func) in _TRAINING for node in ast.walk(loop))


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Break | ast.Return)


def _holds(node: ast.stmt | ast.ExceptHandler, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 4]} ..."
