"""The tensors in what is saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

MOST_TENSORS = 4096  # of one checkpoint, whose names are looked at
PREFIXES = ("module.", "_orig_mod.")


def count_names(state: Any) -> tuple[int, int]:
    """The tensors of a checkpoint, and those whose names begin with what a wrapper puts there."""
    tensors = wrapped = 0
    for name, _ in tensors_in(state):
        tensors += 1
        wrapped += name.startswith(PREFIXES)
    return tensors, wrapped


def holds_schedule(state: Any) -> bool:
    """Whether what a learning rate scheduler's state_dict returned is in it."""
    return any(name == "last_epoch" for name, _ in _entries(state))


def tensors_in(state: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested dictionaries, lists and tuples by their own keys, as far as `MOST_TENSORS` entries."""
    return ((name, one) for name, one in _entries(state) if isinstance(one, Tensor))


def _entries(state: Any) -> Iterator[tuple[str, Any]]:
    stack: list[tuple[str, Any]] = [("", state)]
    for _ in range(MOST_TENSORS):
        if not stack:
            return
        name, one = stack.pop()
        yield name, one
        if isinstance(one, dict):
            stack += [(str(key), value) for key, value in list(one.items())[:MOST_TENSORS]]
        elif isinstance(one, (list, tuple)):
            stack += [(name, value) for value in one[:MOST_TENSORS]]
