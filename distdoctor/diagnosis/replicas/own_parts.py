"""Parts of a model that each rank trains for itself, beside what the ranks average by hand: heads for tasks of their own.

A wrapper says what it averages; averages by hand are known by the shapes that were sent. A part whose shapes never were is no
replica for sure: where it began differently on each rank it is none, where it began equal it may have been forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from distdoctor.diagnosis.facts.collectives import members_of
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, TensorInfo
from distdoctor.recording.trace.layout import CallFlag, Op

_TRADES = [int(op) for op in (Op.ALL_TO_ALL, Op.ALL_TO_ALL_SINGLE)]


def rows_traded(own: RankGradients) -> int:
    """How often a rank sent rows to the others while it trained, as to the owners of experts."""
    calls = own.log.calls
    return int((np.isin(calls["op"], _TRADES) & (calls["step"] > 0)).sum())


def trading_ranks(own: RankGradients) -> set[frozenset[int]]:
    """The members of the groups in which it did so, as far as they are known."""
    calls = own.log.calls
    groups = set(calls["group"][np.isin(calls["op"], _TRADES) & (calls["step"] > 0)].tolist())
    return {members_of(own.log.text(int(row["members"]))).known for row in own.log.groups if int(row["key"]) in groups}


def never_sent(ranks: Iterable[RankGradients], tensors: Mapping[str, TensorInfo]) -> frozenset[str]:
    """The tensors with shapes that no all_reduce of any of these ranks had; none where gradients may travel in flat buffers."""
    shapes: Counter[str] = Counter()
    for own in ranks:
        calls = own.log.calls[(own.log.calls["op"] == Op.ALL_REDUCE) & (own.log.calls["flags"] & CallFlag.NATIVE == 0)]
        shapes.update({own.log.text(int(text)): 1 for text in np.unique(calls["shape"])})
    left = {name: tensor for name, tensor in tensors.items() if tensor.shape not in shapes}
    held = {tensor.shape for tensor in tensors.values()}
    flat = [int(shape[1:-1]) for shape in shapes if shape not in held and shape[1:-1].isdigit()]
    if not left or len(left) == len(tensors) or max(flat, default=0) >= min(t.numel for t in left.values()) > 1:
        return frozenset()
    return frozenset(left)


def began_apart(ranks: Iterable[RankGradients], names: Iterable[str], optimizer: int) -> frozenset[str]:
    """Those of the tensors that were not the same on all of these ranks before the first step."""
    starts = [own.digests(0, optimizer) for own in ranks]
    return frozenset(
        name for name in names if len({int(start[name]["param"]) for start in starts if name in start}) > 1
    )


def are_whole_modules(tensors: Mapping[str, TensorInfo], names: frozenset[str]) -> bool:
    """Whether these are all parameters of some modules right below the root, and all others belong to other ones."""
    mine = {name.split(".")[0] for name in names}
    return mine.isdisjoint(name.split(".")[0] for name in tensors if name not in names)
