"""Stages of training: an optimizer that goes on with parameters that another one has stepped before.

What such an optimizer finds before its first step are no initial parameters. What differs there was changed since the other
optimizer's last step, or differed already and is that optimizer's story.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import TensorInfo, Update
from distdoctor.diagnosis.replicas.tensor_differences import TensorDifference
from distdoctor.recording.trace.layout import TensorFlag


class _Divergence(Protocol):
    @property
    def peers(self) -> ReplicaGroup: ...
    @property
    def differences(self) -> tuple[TensorDifference, ...]: ...
    @property
    def at_ns(self) -> int: ...


def are_carried_on(gradients: Gradients, peers: ReplicaGroup, differences: Iterable[TensorDifference]) -> bool:
    """Whether another optimizer has stepped everything that differs; where no details are kept, everything that is held."""
    differing = [difference.tensor for difference in differences]
    tensors: Iterable[TensorInfo] = differing or gradients.agreeing(peers, on_gradients=False).values()
    flags = [tensor.flags for tensor in tensors]
    return bool(flags) and all(flag & TensorFlag.CARRIED for flag in flags)


def is_old_news(gradients: Gradients, parting: _Divergence, others: Iterable[_Divergence]) -> bool:
    """Whether the replicas had parted before, in parameters that another optimizer steps as well."""
    names = {difference.name for difference in parting.differences}
    mine = are_carried_on(gradients, parting.peers, parting.differences)
    return any(
        other.peers.optimizer != parting.peers.optimizer
        and other.peers.ranks == parting.peers.ranks
        and other.at_ns < parting.at_ns
        and (mine or are_carried_on(gradients, other.peers, other.differences))
        and names <= gradients.agreeing(other.peers, on_gradients=False).keys()
        for other in others
    )


def left_before(gradients: Gradients, updates: Mapping[int, Update], names: Iterable[str]) -> dict[int, dict[str, int]]:
    """rank -> parameter -> the digest that the last step of another optimizer left; {} where no rank still has one of these bits
    when its update is made, so that it may be another parameter of that name, or steps that nobody sampled lie between."""
    wanted = tuple(names)
    found = {rank: _left(gradients, rank, update, wanted) for rank, update in updates.items()}
    now = {rank: gradients.ranks[rank].digests(update.step, update.optimizer) for rank, update in updates.items()}
    same = any(
        name in now[rank] and int(now[rank][name]["before"]) == left
        for rank in found
        for name, left in found[rank].items()
    )
    return found if same else {}


def _left(gradients: Gradients, rank: int, update: Update, names: tuple[str, ...]) -> dict[str, int]:
    own = gradients.ranks[rank]
    others = [u for u in own.updates if u.digested and u.optimizer != update.optimizer and u.at_ns < update.at_ns]
    found: dict[str, int] = {}
    for other in sorted(others, key=lambda u: u.at_ns):
        rows = own.digests(other.step, other.optimizer)
        found |= {name: int(rows[name]["param"]) for name in names if name in rows}
    return found
