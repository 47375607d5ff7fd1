"""Optimizers that are stepped with a closure: `step` has begun, and the gradients that it will use do not exist yet.

Lightning steps so always, LBFGS asks again and again. What is to be known about the gradients is there when the closure has
returned for the first time; where there is none, at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distdoctor.probe.compile_guard import skipped

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def after_first_return(args: tuple[Any, ...], kwargs: dict[str, Any], then: Callable[[], Any]) -> Arguments | None:
    """What a step pre-hook returns so that `then` is called when the closure has come back; None where there is no closure."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _followed(kwargs["closure"], then)}
    if len(args) > 1 and callable(args[1]):  # args[0] is the optimizer
        return (args[0], _followed(args[1], then), *args[2:]), kwargs
    return None


def _followed(original: Callable[..., Any], then: Callable[[], Any]) -> Callable[..., Any]:
    waiting = [then]

    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        while waiting:
            waiting.pop()()
        return result

    return skipped(call)
