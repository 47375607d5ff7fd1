"""A count of samples that a resumed run works out from a saved number of steps and its own number of ranks. Pure `ast`.

saved = torch.load(path)
step = saved["step"]
seen = step * batch_size * world_size       # with another world size the earlier run had seen fewer, or more
while seen < total: ...; seen += taken
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.rank_words import names_world
from distdoctor.diagnosis.source.source_file import Binding, Scope, last_word, source_file
from distdoctor.recording.source_line import SourceLine


@dataclass(frozen=True)
class ResumedCount:
    """`line`: where the count is worked out; `text`: as it is written."""

    line: SourceLine
    name: str
    text: str


def resumed_count(sources: Mapping[str, str]) -> ResumedCount | None:
    """The first count of the user's files that grows in a loop and is set from a saved number times the world size."""
    for path in sources:
        file = source_file(sources, path)
        for scope in file.scopes if file is not None else ():
            for one in _counts(scope):
                line = SourceLine(path, one.value.lineno, scope.traceback_name)
                return ResumedCount(line, one.name, ast.unparse(one.value))
    return None


def _counts(scope: Scope) -> Iterator[Binding]:
    loaded = {name for name, found in scope.bindings.items() if any(_loads(one.value) for one in found)}
    restored = {name for name, found in scope.bindings.items() if any(_reads(one.value, loaded) for one in found)}
    for name, found in scope.bindings.items():
        if loaded and any(_grows(one) for one in found):
            yield from (one for one in found if _is_scaled(one.value, loaded, restored - {name}))


def _loads(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_word(value.func) in ("load", "load_checkpoint")


def _reads(value: ast.AST, loaded: set[str]) -> bool:
    """Whether an expression takes something out of what was loaded: `saved["step"]`, `saved.get("step", 0)`."""
    return any(
        isinstance(one, ast.Subscript | ast.Attribute) and last_word(one.value) in loaded for one in ast.walk(value)
    )


def _grows(one: Binding) -> bool:
    """`seen += n`, or `step, seen = step + 1, seen + n`."""
    if isinstance(one.statement, ast.AugAssign):
        return isinstance(one.statement.op, ast.Add)
    is_sum = isinstance(one.value, ast.BinOp) and isinstance(one.value.op, ast.Add)
    return is_sum and one.name in _words(one.value)


def _is_scaled(value: ast.expr, loaded: set[str], restored: set[str]) -> bool:
    """Whether it is a product of a restored number and the number of ranks."""
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult)):
        return False
    words = _words(value)
    return any(map(names_world, words)) and (_reads(value, loaded) or bool(words & restored))


def _words(node: ast.AST) -> set[str]:
    return {word for one in ast.walk(node) if (word := last_word(one))}
