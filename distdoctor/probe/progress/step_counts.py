"""How many steps each optimizer has made. One that is built anew over the same parameters goes on where its predecessor was."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

from distdoctor.probe import wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.weak_identity import ByIdentity

MOST = 64  # parameters of a group that are looked at, from either end


class StepCounts:
    """Optimizers that are made side by side (of a GAN, an outer one around an inner one) each count from nought."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.made_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by optimizer: the step
        self.trained: ByIdentity[bool] = ByIdentity()

    def install(self) -> None:
        """Note at which step an optimizer is made, from now on."""
        from torch.optim.optimizer import Optimizer

        wrappers.listen(Optimizer, "__init__", before=self.rank.guarded(self.made))

    def made(self, optimizer: Any) -> None:
        if self.rank.step:
            self.made_at[optimizer] = self.rank.step

    def stepped(self, optimizer: Any) -> int:
        """The number of the step that the optimizer has made."""
        count = self.counts.get(optimizer)
        if count is None:
            parameters = list(_some_of(optimizer))
            goes_on = any(self.trained.get(one) for one in parameters)
            count = self.made_at.get(optimizer, 0) if goes_on else 0
            for one in parameters:
                self.trained.set(one, True)
        self.counts[optimizer] = count + 1
        return count + 1


def _some_of(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        parameters = group["params"]
        yield from islice(parameters, MOST)
        yield from islice(reversed(parameters), max(0, min(MOST, len(parameters) - MOST)))
