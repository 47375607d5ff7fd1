"""The graph behind a loss: its operations, and what those of torch's own have kept for backward.

Reading what is kept would run the hooks of whoever has laid some around saved tensors: not to be asked for then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from distdoctor.probe.interruptions import hand_on

NODES = 4000  # of one graph


def nodes_behind(start: Any) -> Iterator[Any]:
    """The operations behind one, itself first; at most `NODES`."""
    seen, waiting = {start}, [start]
    while waiting and len(seen) < NODES:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def saved_by(node: Any) -> Iterator[Tensor]:
    """What an operation of torch's own has kept for backward."""
    for name in dir(node):
        if name.startswith("_saved_"):
            try:
                value = getattr(node, name)
            except RuntimeError as error:  # let go already, or changed in place: backward will say so itself
                hand_on(error)
                continue
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, tuple):
                yield from (part for part in value if isinstance(part, Tensor))
