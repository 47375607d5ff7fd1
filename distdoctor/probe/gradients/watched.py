"""Models of which the user has said that every rank holds a replica: `distdoctor.watch(model)`.

What a wrapper or a placement says of a parameter goes first: a word is asked for where neither is there, as with averaging by
hand. Models are held weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import nn

from distdoctor.probe.context import Rank
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import WATCHED, Averaging


@dataclass(frozen=True)
class WatchedModel:
    """A model and the ranks that hold it, () for all ranks of the job. `site` is the text of the user's line."""

    model: weakref.ref[nn.Module]
    ranks: tuple[int, ...]
    site: str

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks by number, as far as they are known now."""
        import torch.distributed as dist

        known = dist.is_available() and dist.is_initialized()
        return self.ranks or (tuple(range(dist.get_world_size())) if known else ())


class WatchedModels:
    """What was said of the parameters of one rank, and noted once where it counts."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._noted: set[tuple[int, ...]] = set()

    def by_parameter(self) -> dict[int, WatchedModel]:
        """id of each parameter -> what was said of it. Nothing for a job of one rank."""
        return {id(parameter): one for one in self._alive() for parameter in one.model().parameters()}  # type: ignore[union-attr]

    def wrappers(self) -> Iterator[nn.Module]:
        """Every DistributedDataParallel in these models: one that was made before the recording began is not known otherwise."""
        for one in self._alive():
            for module in one.model().modules():  # type: ignore[union-attr]
                if isinstance(module, nn.parallel.DistributedDataParallel):
                    yield module

    def note(self, trace: TraceWriter, used: Iterable[WatchedModel]) -> None:
        """Write down the sets of ranks that count, because nothing else tells of their parameters."""
        for one in used:
            if one.members not in self._noted:
                self._noted.add(one.members)
                trace.note(Averaging(one.members, WATCHED), site=trace.texts.id(one.site))

    def _alive(self) -> Iterator[WatchedModel]:
        for one in self._rank.watched:
            if one.model() is not None and len(one.members) > 1:
                yield one
