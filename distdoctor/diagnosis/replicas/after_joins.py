"""What a Join with uneven inputs leaves behind: equal weights, and optimizers that have made different numbers of steps.

torch's Join hands the weights of who joined last to all others. What their optimizers remember it leaves alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.replicas.gradients import WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, Update
from distdoctor.recording.trace.events import Joined


@dataclass(frozen=True)
class LeftBehind:
    """In the first step behind a Join the ranks have equal weights and gradients, and step differently.

    `joined`: what each has noted of the Join; `steps`: those that it has made in it; `names`: what differs after the step.
    """

    peers: ReplicaGroup
    joined: Mapping[int, Joined]
    steps: Mapping[int, int]
    updates: Mapping[int, Update]
    names: tuple[str, ...]


def left_behind(gradients: Gradients) -> Iterator[LeftBehind]:
    """The first of each set of peers."""
    for peers in gradients.peers:
        if peers.by == WRAPPER and all(rank in gradients.ranks for rank in peers.ranks):
            found = next(_of_peers(gradients, peers), None)
            if found is not None:
                yield found


def _of_peers(gradients: Gradients, peers: ReplicaGroup) -> Iterator[LeftBehind]:
    joins = {rank: list(gradients.ranks[rank].events(Joined)) for rank in peers.ranks}
    if len({len(own) for own in joins.values()}) > 1 or not any(joins.values()):
        return
    whole = {rank: RankGradients(gradients.ranks[rank].log) for rank in peers.ranks}
    ended = dict.fromkeys(peers.ranks, 0)
    for together in zip(*joins.values(), strict=True):
        joined = dict(zip(joins, together, strict=True))
        steps = {rank: one.steps - ended[rank] for rank, one in joined.items()}
        ended = {rank: one.ended for rank, one in joined.items()}
        if not all(ended.values()):
            return
        updates = {rank: _first_behind(whole[rank], peers, ended[rank]) for rank in peers.ranks}
        known = {rank: update for rank, update in updates.items() if update is not None}
        if len(set(steps.values())) > 1 and len(known) == len(updates):
            names = _stepped_apart(whole, peers, known)
            if names:
                yield LeftBehind(peers, joined, steps, known, names)


def _first_behind(own: RankGradients, peers: ReplicaGroup, ended: int) -> Update | None:
    mine = (one for one in own.updates if one.optimizer == peers.optimizer and one.agree == peers.lane)
    return next((one for one in mine if one.step == ended + 1 and one.digested and one.has_state), None)


def _stepped_apart(
    whole: Mapping[int, RankGradients], peers: ReplicaGroup, updates: Mapping[int, Update]
) -> tuple[str, ...]:
    """The parameters that differ after this step, where all were equal before it, with equal gradients and settings."""
    if any(len({one.number(what) for one in updates.values()}) > 1 for what in ("grads", "hyper")):
        return ()
    rows = [whole[rank].digests(one.step, peers.optimizer) for rank, one in updates.items()]
    names = [name for name in rows[0] if rows[0][name]["param"] and all(name in own for own in rows)]
    before = all(len({int(own[name]["before"]) for own in rows} | {0}) == 2 for name in names)
    apart = [name for name in names if len({int(own[name]["param"]) for own in rows}) > 1]
    remembers = all(len({int(own[name]["state"]) for own in rows} | {0}) > 2 for name in apart)
    return tuple(apart) if before and remembers else ()
