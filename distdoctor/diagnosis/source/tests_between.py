"""The tests that lie between two lines: on the way down to one of them, and not on that to the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.source.deciding_tests import DecidingTest, tests_around
from distdoctor.diagnosis.source.source_file import Scope, lineno
from distdoctor.diagnosis.source.user_program import UserProgram
from distdoctor.diagnosis.source.ways import Way


def tests_between(program: UserProgram, mine: Way, theirs: Way) -> Iterator[DecidingTest]:
    """The tests that decide between the two, the nearest to where they part first; those that both pass are none.

    Where no body is known that leads to both, as where a framework calls the one, only what stands around the lines themselves is
    known to lie between them.
    """
    shared = [scope for scope in mine.depth if scope in theirs.depth]
    top = min(shared, key=lambda s: (mine.depth[s] + theirs.depth[s], s.path, lineno(s.node)), default=None)
    parted = top is None and mine.depth and theirs.depth
    sides = [_around(program, way) if parted else _tests_down_to(program, way, top) for way in (mine, theirs)]
    keys = [{test.key for test in side} for side in sides]
    seen: set[tuple[int, bool, int]] = set()
    for side, other in ((sides[0], keys[1]), (sides[1], keys[0])):
        for test in side:
            if test.key not in other and test.key not in seen:
                seen.add(test.key)
                yield test


def _around(program: UserProgram, way: Way) -> list[DecidingTest]:
    """The questions in the body that a line stands in, and in those that were recorded to lead there."""
    nodes = [*next(iter(way.nodes.values())), *way.recorded.values()]
    return [test for node in nodes for test in tests_around(program, node) if not test.is_loop]


def tests_on_the_way(program: UserProgram, way: Way) -> list[DecidingTest]:
    """The tests on every way to a line, its own body first."""
    return [test for scope, nodes in way.nodes.items() for node in nodes for test in tests_around(program, node)]


def _tests_down_to(program: UserProgram, way: Way, top: Scope | None) -> list[DecidingTest]:
    """The tests on the way from a body down to the line; without one, from wherever the way begins."""
    scopes = [top] if top is not None else [s for s in way.depth if way.depth[s] == max(way.depth.values())]
    reached: list[Scope] = []
    while scopes:
        reached += scopes
        below = {t for scope in scopes for node in way.nodes.get(scope, ()) for t in _run_by(program, node, way)}
        scopes = [s for s in below if s not in reached and all(way.depth[s] < way.depth[up] for up in scopes)]
    ordered = sorted((s for s in reached if s in way.nodes), key=lambda s: way.depth[s])
    found = [
        replace(test, case=_led_to(program, node, way)) if test.holder is node and test.case is None else test
        for scope in ordered
        for node in way.nodes[scope]
        for test in tests_around(program, node)
    ]
    return [
        *found,
        *(DecidingTest(one, one) for s in ordered if s is not top for one in getattr(s.node, "decorator_list", ())),
    ]


def _led_to(program: UserProgram, node: ast.AST, way: Way) -> ast.AST | None:
    """Of several functions that a call chooses from, the one through which the line is reached."""
    return next((scope.node for scope in _run_by(program, node, way)), None)


def _run_by(program: UserProgram, node: ast.AST, way: Way) -> Iterator[Scope]:
    for scope in way.nodes:
        if node in program.callers.get(scope, ()) or way.recorded.get(scope) is node:
            yield scope
