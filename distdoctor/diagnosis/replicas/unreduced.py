"""Parameters that took no part in the loss, so that DistributedDataParallel never finished averaging."""

from __future__ import annotations

from distdoctor.diagnosis.replicas.gradients import WRAPPER, Gradients, ReplicaGroup
from distdoctor.recording.trace.events import Wrapped
from distdoctor.recording.trace.layout import TensorFlag

_UNREDUCED = TensorFlag.FROZEN | TensorFlag.OUTSIDE | TensorFlag.BUFFER


def left_out(peers: ReplicaGroup, step: int, gradients: Gradients) -> tuple[str, ...]:
    """The parameters for whose gradients the reducer waits, and which had none on any rank when that step began.

    () where the wrapper was told to expect that (find_unused_parameters, static_graph), or where details are no longer kept.
    """
    if peers.by != WRAPPER or not all(_expects_all(gradients, rank) for rank in peers.ranks if rank in gradients.ranks):
        return ()
    held = {rank: _without(gradients, rank, peers.optimizer, step) for rank in peers.ranks if rank in gradients.ranks}
    if len(held) < 2 or not all(held.values()):
        return ()
    first = next(iter(held.values()))
    return tuple(name for name in first if all(name in names for names in held.values()))


def left_out_last(gradients: Gradients, rank: int) -> tuple[str, ...]:
    """The same for the last step of one rank alone."""
    own = gradients.ranks.get(rank)
    if own is None or not _expects_all(gradients, rank):
        return ()
    looked = [update for update in own.updates if update.digested]
    return _without(gradients, rank, looked[-1].optimizer, looked[-1].step) if looked else ()


def _without(gradients: Gradients, rank: int, optimizer: int, step: int) -> tuple[str, ...]:
    """The parameters that had no gradient, of those that are reduced."""
    own = gradients.ranks[rank]
    found = []
    for name, row in own.digests(step, optimizer).items():
        info = own.info(name, optimizer)
        if not int(row["grad"]) and info is not None and info.agree and not info.flags & _UNREDUCED:
            found.append(name)
    return tuple(found)


def _expects_all(gradients: Gradients, rank: int) -> bool:
    own = gradients.ranks[rank]
    made = list(own.events(Wrapped))
    return bool(made) and not any(one.searches_unused or one.static_graph for one in made)
