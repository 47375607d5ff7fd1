"""What each rank keeps for itself in objects of the user's own, and what a checkpoint of one rank has put into all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.checkpoint.restored import Continuation, Restored
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.recording.trace.layout import TensorFlag

FEWEST = 3  # looks in which two ranks never agreed


@dataclass(frozen=True)
class HeldByAll:
    """`ranks` went on with what rank `saver` had saved of its own: `names`, in which they differed from it in all of `looks`."""

    saver: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    looks: int
    first: Continuation


def held_by_all(restored: Restored, gradients: Gradients) -> Iterator[HeldByAll]:
    """One for each rank whose own state others have begun with."""
    for saver in sorted({one.save.rank for one in restored.ranks.values() if one.of_another}):
        found = {}
        for rank, one in restored.ranks.items():
            if one.save.rank == saver:
                looks = {name: _looks_apart(gradients, saver, rank, name) for name in one.of_another}
                found[rank] = {name: n for name, n in looks.items() if n >= FEWEST}
        ranks = tuple(sorted(rank for rank, names in found.items() if names))
        if ranks:
            names = tuple(name for name in found[ranks[0]] if all(name in found[rank] for rank in ranks))
            if names:
                yield HeldByAll(saver, ranks, names, found[ranks[0]][names[0]], restored.ranks[ranks[0]])


def _looks_apart(gradients: Gradients, one: int, other: int, name: str) -> int:
    """In how many steps both ranks have looked at it, when they never agreed after one of them had changed it; else 0."""
    if one not in gradients.ranks or other not in gradients.ranks:
        return 0
    mine, its = _values(gradients, one, name), _values(gradients, other, name)
    common = sorted(mine.keys() & its.keys())
    apart = [step for step in common if mine[step] != its[step]]
    return len(apart) if apart and apart == common[-len(apart) :] else 0


def _values(gradients: Gradients, rank: int, name: str) -> dict[int, int]:
    own = gradients.ranks[rank]
    return {
        step: int(row["param"])
        for tensor in own.tensors.values()
        if tensor.name == name and tensor.flags & TensorFlag.PLAIN
        for step, row in own.rows_of(tensor.seq)
    }
