"""An argument that a call leaves out is the default at that line for ever; any other may be another one each time."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from distdoctor.probe.collectives.left_out import leaves_out

MAX = "max"
seen: list[bool] = []


def reduce(tensor: Any, op: str = "sum", group: Any = None) -> None:
    seen.append(leaves_out(sys._getframe(1), reduce.__code__, "op"))


class Namespace:
    reduce = staticmethod(reduce)


def left_out() -> None:
    reduce(1)
    Namespace.reduce(1)
    reduce(1, group=2)
    reduce(tensor=1)
    reduce(
        1,
        group=Namespace.reduce(1),
    )


def given() -> None:
    arguments, words = (1, MAX), {"op": MAX}
    reduce(1, MAX)
    reduce(1, op=MAX)
    Namespace.reduce(1, op=MAX)
    reduce(*arguments)
    reduce(1, **words)
    for other in (reduce, partial(reduce, op=MAX)):
        other(1)
    reduce(1, MAX, group=2)


def test_a_call_that_gives_nothing_for_the_parameter_is_known() -> None:
    seen.clear()
    left_out()
    assert seen == [True] * 6


def test_every_other_way_to_call_is_not() -> None:
    seen.clear()
    given()
    assert seen == [False] * 8


def test_a_method_and_a_function_without_such_a_parameter_are_not() -> None:
    def own(self: Any, op: str = "sum") -> bool:
        return leaves_out(sys._getframe(1), own.__code__, "op")

    def other(tensor: Any) -> bool:
        return leaves_out(sys._getframe(1), other.__code__, "op")

    assert not own(1)
    assert not other(1)
