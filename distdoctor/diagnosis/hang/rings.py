"""Closed chains of waits, whatever the grade of evidence: recorded calls, dumps or stacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping


def closed_chains(needs: Mapping[int, Iterable[int]], ranks: Mapping[int, Iterable[int]]) -> Iterator[list[int]]:
    """Rings among numbered waits, each for the next, no two with a rank in common; the same ones whatever the order of ranks.

    `needs`: wait -> the waits that would have to end before it; `ranks`: wait -> the ranks inside it.
    """
    if not any(needs.values()):
        return
    import networkx as nx  # here: most recordings have no such waits, and it takes 0.1 s

    graph: nx.DiGraph[int] = nx.DiGraph((at, other) for at in sorted(needs) for other in needs[at])
    with contextlib.suppress(nx.NetworkXNoCycle):
        while graph:
            ring = [at for at, _ in nx.find_cycle(graph)]
            first = ring.index(min(ring))
            yield ring[first:] + ring[:first]
            mine = {rank for at in ring for rank in ranks[at]}
            graph.remove_nodes_from([at for at in graph if mine & set(ranks[at])])
