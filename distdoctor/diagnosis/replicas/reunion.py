"""Replicas that part by design and meet again: local SGD, periodic averaging, gossip, models that are sent round.

Weights that became different by themselves never become equal again by themselves. So where they do, the program has brought
them together; and where its own collectives carry weights between steps again and again, it is at it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, Update, same_ranks
from distdoctor.recording.trace.layout import POINT_TO_POINT, CallFlag, Op, TensorFlag

PATIENCE = 4  # times the longest time apart so far: a last window that nobody has closed yet
EXCHANGES = 2  # steps after which weights were exchanged; once may be the end of something
_ENOUGH = 0.9  # of the weights' shapes have to be found among those of the collectives
_CARRYING = [int(op) for op in (*POINT_TO_POINT, Op.ALL_REDUCE, Op.BROADCAST, Op.ALL_GATHER, Op.REDUCE)]

Looks = Mapping[int, Mapping[int, Update]]  # step -> rank -> what was seen


def next_meeting(gradients: Gradients, peers: ReplicaGroup, looks: Looks, step: int) -> int | None:
    """The first step from `step` on after which the parameters are the same everywhere, though they moved in it; or before
    which they are. None: never."""
    for later in sorted(number for number in looks if number >= step):
        updates = looks[later]
        if len(updates) < 2:
            continue
        if later > step and _equal(gradients, peers, later, tuple(updates), "before"):
            return later
        moved = all(update.value("lr") != 0 for update in updates.values())
        if moved and _equal_after(gradients, peers, later, updates):
            return later
    return None


def _equal_after(gradients: Gradients, peers: ReplicaGroup, step: int, updates: Mapping[int, Update]) -> bool:
    if peers.names:
        return _equal(gradients, peers, step, tuple(updates), "param")
    return len({update.number("params") for update in updates.values()}) == 1


def _equal(gradients: Gradients, peers: ReplicaGroup, step: int, ranks: tuple[int, ...], column: str) -> bool:
    """Whether every parameter was the same when that step began, or ended; False where that was not looked at."""
    rows = [gradients.ranks[rank].digests(step, peers.optimizer) for rank in ranks]
    if not all(rows):
        return False
    names = set.intersection(*(set(found) for found in rows))
    values = [[int(found[name][column]) for name in sorted(names) if _mine(gradients, peers, name)] for found in rows]
    return bool(values[0]) and all(values[0]) and all(one == values[0] for one in values)


def _mine(gradients: Gradients, peers: ReplicaGroup, name: str) -> bool:
    info = gradients.ranks[peers.ranks[0]].info(name, peers.optimizer) if peers.ranks[0] in gradients.ranks else None
    return info is not None and same_ranks(info.agree, peers.lane) and (not peers.names or name in peers.names)


def weights_are_exchanged(gradients: Gradients, peers: ReplicaGroup, since: int) -> bool:
    """Whether each rank's own collectives with the others carry its weights between steps, more than once after step `since`."""
    known = [gradients.ranks[rank] for rank in peers.ranks if rank in gradients.ranks]
    return len(known) > 1 and all(len(_exchanges(own, peers, since)) >= EXCHANGES for own in known)


def _exchanges(own: RankGradients, peers: ReplicaGroup, since: int) -> list[int]:
    """The steps after which shapes of the weights were sent, before the next gradients were computed."""
    held = [
        t
        for t in own.tensors.values()
        if t.optimizer == peers.optimizer and same_ranks(t.agree, peers.lane) and not t.flags & TensorFlag.BUFFER
    ]
    wanted = Counter({t.name: t.shape for t in held}.values())
    total = f"[{sum({t.name: t.numel for t in held}.values())}]"
    if not wanted:
        return []
    calls = own.log.calls
    calls = calls[(calls["step"] >= max(1, since)) & np.isin(calls["op"], _CARRYING)]
    calls = calls[calls["flags"] & (CallFlag.NATIVE | CallFlag.OBJECT) == 0]
    began = {int(row["step"]) - 1: int(row["forward_ended_ns"]) for row in own.log.rows("times")}
    found = []
    for step in np.unique(calls["step"]):
        between = [call for call in calls[calls["step"] == step] if _is_before(call, began.get(int(step)))]
        shapes = Counter(own.log.text(int(call["shape"])) for call in between if _concerns(own, call, peers))
        if shapes[total] or sum((shapes & wanted).values()) >= _ENOUGH * sum(wanted.values()):
            found.append(int(step))
    return found


def _is_before(call: Any, backward_began: int | None) -> bool:
    """Whether it was made before the backward of its step: what comes after that may be the gradients' reduction."""
    return not backward_began or int(call["entered_ns"]) < backward_began


def _concerns(own: RankGradients, call: Any, peers: ReplicaGroup) -> bool:
    if int(call["op"]) in [int(op) for op in POINT_TO_POINT]:
        return int(call["root"]) in peers.ranks
    members = next((g.ranks for g in own.log.group_list() if g.name == own.log.text(int(call["group"]))), ())
    return len(set(members) & set(peers.ranks)) > 1
