"""Every wrapper that the probe lays around torch, each named and removable. Nothing else in distdoctor patches anything."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from distdoctor.probe.compile_guard import passed_over, skipped

_laid: list[tuple[Any, str, Any]] = []
_listeners: dict[
    tuple[Any, str], tuple[list[Callable[[Any], None]], list[Callable[[], None]], list[Callable[[Any], None]]]
] = {}


def lay(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Replace `owner.name` by `make(original)`. False when this torch has no such name."""
    original = getattr(owner, name, None)
    if original is None:
        return False
    wrapper = passed_over(make(original))
    functools.update_wrapper(wrapper, original, updated=())
    _laid.append((owner, name, original))
    setattr(owner, name, wrapper)
    return True


def lay_everywhere(
    owners: tuple[Any, ...], name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> bool:
    """One wrapper under `name` in every module that re-exports the same original."""
    original = getattr(owners[0], name, None)
    if original is None or not lay(owners[0], name, make):
        return False
    wrapper = getattr(owners[0], name)
    for owner in owners[1:]:
        if getattr(owner, name, None) is original:
            _laid.append((owner, name, original))
            setattr(owner, name, wrapper)
    return True


def listen(
    owner: Any,
    name: str,
    *,
    before: Callable[[Any], None] | None = None,
    after: Callable[[], None] | None = None,
    given: Callable[[Any], None] | None = None,
) -> bool:
    """Have `before` called with the first argument ahead of `owner.name`, and `after` when it has returned without raising;
    `given` then gets what it returned.

    All who listen share one wrapper, so a traceback through it has one line of ours. The first to listen is nearest to the call.
    They must not raise. False when this torch has no such name.
    """
    if (owner, name) not in _listeners:
        befores: list[Callable[[Any], None]] = []
        afters: list[Callable[[], None]] = []
        takers: list[Callable[[Any], None]] = []

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                first = args[0] if args else next(iter(kwargs.values()), None)
                for listener in befores:
                    listener(first)
                del first
                result = original(*args, **kwargs)
                for told in afters:
                    told()
                for taker in takers:
                    taker(result)
                return result

            return skipped(call)

        if not lay(owner, name, make):
            return False
        _listeners[owner, name] = befores, afters, takers
    befores, afters, takers = _listeners[owner, name]
    if before is not None:
        befores.insert(0, before)
    if after is not None:
        afters.append(after)
    if given is not None:
        takers.append(given)
    return True


def lay_for_a_while(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    """Replace `owner.name` until the function that is returned is called. What a class inherits, it inherits again then."""
    inherited = name not in vars(owner)
    original = getattr(owner, name, None)
    if original is None:
        return lambda: None
    wrapper = passed_over(make(original))
    setattr(owner, name, wrapper)

    def give_back() -> None:
        if vars(owner).get(name) is not wrapper:
            return  # somebody else has wrapped it meanwhile: theirs calls ours, and ours goes on
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return give_back


def laid() -> list[str]:
    """The names of what is wrapped at present."""
    return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name, _ in _laid]


def remove_all() -> None:
    """Give torch back its own functions."""
    _listeners.clear()
    while _laid:
        owner, name, original = _laid.pop()
        setattr(owner, name, original)
