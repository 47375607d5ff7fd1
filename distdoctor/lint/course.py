"""The course of a function: what it calls in the order of the source, with the calls of our own functions in their place."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from distdoctor.diagnosis.source.source_file import Scope, SourceFile, exclusive, lineno
from distdoctor.lint.program import ParsedFiles

MOST_FUNCTIONS = 3  # deep; what is further away belongs to another part of a program
MOST_EVENTS = 100  # of one function
MOST_STARTS = 20


@dataclass(frozen=True, eq=False)
class Event:
    """One call. `path`: the calls that lead to it, each with the scope that it stands in; the last is the call itself."""

    path: tuple[tuple[ast.Call, Scope], ...]

    @property
    def call(self) -> ast.Call:
        return self.path[-1][0]

    @property
    def scope(self) -> Scope:
        return self.path[-1][1]

    @property
    def receiver(self) -> ast.expr | None:
        """`scaler` of `scaler.step(optimizer)`."""
        return self.call.func.value if isinstance(self.call.func, ast.Attribute) else None

    @property
    def files(self) -> set[SourceFile]:
        return {scope.file for _, scope in self.path}

    def before(self, other: Event) -> bool:
        """Whether it comes first, where the two courses part, and both may happen in one pass."""
        for (mine, scope), (its, _) in zip(self.path, other.path, strict=False):
            if mine is not its:
                return lineno(mine) < lineno(its) and not exclusive(mine, its, scope.file)
        return False


@dataclass(eq=False)
class Course:
    """The calls of one kind, `wanted`, in any function of a program, by the functions that lead to them."""

    program: ParsedFiles
    wanted: Callable[[ast.Call, Scope], bool]

    @cached_property
    def _calls(self) -> dict[Scope, set[ast.Call]]:
        """What is wanted of each function that has any."""
        found = ((scope, {call for call in scope.calls if self.wanted(call, scope)}) for scope in self.program.scopes)
        return {scope: calls for scope, calls in found if calls}

    @cached_property
    def _leading(self) -> set[Scope]:
        """The functions that have some, and those from whose calls one gets there."""
        found, front = set(self._calls), set(self._calls)
        for _ in range(MOST_FUNCTIONS):
            front = {site.scope for one in front for site in self.program.callers(one)} - found
            found |= front
        return found

    def of(self, scope: Scope) -> list[Event]:
        """Those of a function and of what it calls, in the order of the source, as far as anybody reads."""
        return list(islice(self._walk(scope, ()), MOST_EVENTS))

    def _walk(self, scope: Scope, way: tuple[tuple[ast.Call, Scope], ...]) -> Iterator[Event]:
        """A function that calls itself is gone through once."""
        wanted = self._calls.get(scope, ())
        for call in sorted(scope.calls, key=lineno) if scope in self._leading else ():
            path = (*way, (call, scope))
            if call in wanted:
                yield Event(path)
            for target in self.program.targets(call, scope) if len(path) <= MOST_FUNCTIONS else ():
                if target in self._leading and all(target is not one for _, one in path):
                    yield from self._walk(target, path)


def starts(scope: Scope, program: ParsedFiles, steps: int = 2) -> list[Scope]:
    """The function, those that call it, and those that call these."""
    found, front = [scope], [scope]
    for _ in range(steps):
        callers = (site.scope for one in front for site in program.callers(one))
        front = list(dict.fromkeys(one for one in callers if one not in found))
        found += front
    return found[:MOST_STARTS]
