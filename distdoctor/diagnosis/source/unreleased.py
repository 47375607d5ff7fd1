"""A lock that is taken and given back by two statements: whoever raises in between keeps it for good."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.source.source_file import source_file
from distdoctor.recording.recording import SourceLine

_TAKE_AND_GIVE = {"acquire": "release", "lock": "unlock"}  # as locks in the standard library and in filelock name them


@dataclass(frozen=True)
class Unreleased:
    """`taken` is a call that takes a lock, `released` the line of the call that gives it back, which is `text`."""

    taken: SourceLine
    released: SourceLine
    text: str


def unreleased_at(sources: Mapping[str, str], sites: Iterable[SourceLine]) -> Unreleased | None:
    """Of lines that led to a wait, the first that takes a lock which is given back only when nothing in between raises."""
    return next((found for site in sites for found in _at(sources, site)), None)


def _at(sources: Mapping[str, str], site: SourceLine) -> Iterator[Unreleased]:
    file = source_file(sources, site.path)
    holders = file.nodes(ast.stmt) if file is not None else ()
    blocks: list[list[ast.stmt] | None] = [getattr(one, name, None) for one in holders for name in ("body", "orelse")]
    for block in blocks:
        for at, statement in enumerate(block if isinstance(block, list) else ()):
            call = _call(statement) if statement.lineno == site.line else None
            if block is not None and call is not None:
                yield from _given_back(site, call, block[at + 1 :])


def _given_back(site: SourceLine, taken: ast.Attribute, after: list[ast.stmt]) -> Iterator[Unreleased]:
    """The call, not the next one, that gives back what was taken."""
    receiver, giving = ast.unparse(taken.value), _TAKE_AND_GIVE.get(taken.attr, "")
    for other in after[1:]:
        given = _call(other)
        if given is not None and given.attr == giving and ast.unparse(given.value) == receiver:
            yield Unreleased(site, SourceLine(site.path, other.lineno, site.function), f"{receiver}.{giving}()")


def _call(statement: ast.stmt) -> ast.Attribute | None:
    """The method that a statement calls, by itself: `lock.acquire()`, `got = lock.acquire(timeout=5)`."""
    value = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    return value.func if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else None
