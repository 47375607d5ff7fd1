"""The graph behind a tensor: how many operations it holds, how old they are, and what they keep for a backward pass.

Nothing is unpacked: `_raw_saved_*` gives what was packed, so no hook of checkpointing or offloading runs, and no version is
checked. Numbers of operations (`_sequence_nr`) grow with time within one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import thread_time
from typing import Any

import torch
from torch import Tensor

from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.memory.storages import Storages
from distdoctor.recording.trace.layout import GRAPH_NODES

_UNNUMBERED = (1 << 63) - 1  # AccumulateGrad and its like carry the largest numbers there are
_saved_names: dict[str, tuple[str, ...]] = {}


@dataclass
class Graph:
    """What lies behind some tensors. `capped`: there is more."""

    nodes: int = 0
    old: int = 0
    saved: int = 0
    capped: bool = False


def now() -> int:
    """The number that the next operation of this thread gets."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


def look(
    roots: Iterable[Any], storages: Storages, *, before: int = 0, since: int = 0, deadline: float = float("inf")
) -> Graph:
    """Walk the graph from these operations on. `before`: operations with a lower number count as old; `since`: those with a
    lower number are not entered at all. What `storages` has seen already is not counted again."""
    found = Graph()
    for node, number in _walk(roots, since):
        found.nodes += 1
        found.old += number < before
        if number < _UNNUMBERED:
            found.saved += saved_bytes(node, storages)
        if found.nodes >= GRAPH_NODES or (found.nodes % 64 == 0 and thread_time() > deadline):
            found.capped = True
            break
    return found


def reaches(roots: Iterable[Any], first: int, last: int) -> bool:
    """Whether the graph behind these operations holds one with a number from `first` on and below `last`; true as well where it
    is too large to be walked."""
    return any(
        first <= number < last or visited >= GRAPH_NODES for visited, (_, number) in enumerate(_walk(roots), start=1)
    )


def _walk(roots: Iterable[Any], since: int = 0) -> Iterator[tuple[Any, int]]:
    """Each operation behind these and its number, once; what lies behind those with a number below `since` is left out."""
    stack = [node for node in roots if node is not None]
    kept = list(stack)  # while a wrapper lives, its operation is given the same one again
    seen = {id(node) for node in stack}
    while stack:
        node = stack.pop()
        number = node._sequence_nr()
        if number < since:
            continue
        yield node, number
        for following, _ in node.next_functions:
            if following is not None and id(following) not in seen:
                seen.add(id(following))
                kept.append(following)
                stack.append(following)


def saved_bytes(node: Any, storages: Storages) -> int:
    """What one operation keeps, as far as it was not seen before; 0 once it was freed."""
    kind = type(node)
    name = kind.__name__
    names = _saved_names.get(name)
    if names is None:
        names = tuple(one for one in dir(node) if one.startswith("_raw_saved_"))
        if len(_saved_names) < 10_000:
            _saved_names[name] = names
    total = 0
    for one in names:
        try:
            raw = getattr(node, one)
        except RuntimeError as error:  # freed by backward
            hand_on(error)
            continue
        for saved in raw if isinstance(raw, (list, tuple)) else (raw,):
            data = getattr(saved, "data", None)
            if isinstance(data, Tensor):
                total += storages.add(data)
    return total
