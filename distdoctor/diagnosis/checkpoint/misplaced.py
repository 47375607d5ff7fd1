"""Shards of one rank that another rank resumed with: of a model that is split over the ranks, only one rank's part was saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from distdoctor.recording.states import StateSnapshot
from distdoctor.recording.trace.state_file import SAVE, START, WEIGHTS

LEAST = 2  # weights


@dataclass(frozen=True)
class MisplacedShards:
    """`ranks` began with the weights that `save` had saved of its own shards, `names` first."""

    save: StateSnapshot
    ranks: tuple[int, ...]
    names: tuple[str, ...]


def misplaced_shards(starts: Mapping[int, StateSnapshot], before: Iterable[StateSnapshot]) -> MisplacedShards | None:
    """The newest save of which that is true; None where there is none, or nothing proves that the parts were different ones."""
    earlier = list(before)
    began = {(one.run, one.attempt, one.rank): one for one in earlier if one.document.when == START}
    saves = [one for one in earlier if one.document.when == SAVE and one.document.sharded]
    for save in sorted(saves, key=lambda one: -one.document.wall_ns):
        found: dict[int, tuple[str, ...]] = {}
        for rank, start in starts.items():
            own, other = (began.get((save.run, save.attempt, one)) for one in (rank, save.rank))
            if rank != save.rank and own and other and start.document.world_size == save.document.world_size:
                names = tuple(_foreign(start, save, own, other))
                found |= {rank: names} if names else {}
        if found:
            return MisplacedShards(save, tuple(sorted(found)), found[min(found)])
    return None


def _foreign(start: StateSnapshot, save: StateSnapshot, own: StateSnapshot, other: StateSnapshot) -> Iterator[str]:
    """The weights that were different parts on both ranks when the earlier run began, and are the saved ones now; none where some
    of them are not."""
    now, saved, mine, theirs = (one.digests(WEIGHTS) for one in (start, save, own, other))
    parts = [name for name in saved if name in mine and mine[name] != theirs.get(name) != saved[name]]
    if len(parts) >= LEAST and all(now.get(name) == saved[name] for name in parts):
        yield from parts
