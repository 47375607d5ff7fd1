"""What the parts of the gradients stream share: the trace, the modules, who should agree on what, and how far this rank is."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, MutableMapping

from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from distdoctor.probe.context import Rank
from distdoctor.probe.gradients.agreement import Agreement
from distdoctor.probe.gradients.watched import WatchedModels
from distdoctor.probe.stream import ProbeStream
from distdoctor.probe.tensors.digests import Reading
from distdoctor.probe.tensors.module_trees import ModuleTrees
from distdoctor.probe.writer import TraceWriter

MOST_WAITING = 64  # records of steps whose numbers a device has not computed yet


class GradientsContext(ProbeStream):
    """One for a rank. Trouble in any part ends the stream, and nothing else."""

    name = "gradients"

    def __init__(self, rank: Rank, trace: TraceWriter, deep: bool) -> None:
        super().__init__(rank, trace, deep)
        self.trees = ModuleTrees(self.guarded)
        self.agreement = Agreement()
        self.watched = WatchedModels(rank)
        self.step = 0
        """Steps of the optimizer that steps most often."""
        self.updates = 0
        """Steps of all optimizers."""
        self.backwards = 0
        """Backward passes that have begun."""
        self.stepping: list[weakref.ref[Optimizer]] = []
        """Whose step has begun and is not over, the outermost first."""
        self.first_stepped_by: MutableMapping[Tensor, int] = WeakIdKeyDictionary()
        """Parameter -> the number of the first optimizer that stepped it."""
        self.in_closure = False
        """An optimizer is stepping, and its closure still has to compute the gradients."""
        self._waiting: deque[Callable[[], bool]] = deque()

    @property
    def inside_a_step(self) -> bool:
        """Whether an optimizer is stepping at this moment, with gradients that are there."""
        return not self.in_closure and any(ref() is not None for ref in self.stepping)

    def later(self, write: Callable[[], None], *readings: Reading) -> None:
        """Write when the device has computed everything; at once where it has already."""

        def attempt() -> bool:
            if all(reading.ready() for reading in readings):
                write()
                return True
            return False

        if self._waiting or not attempt():
            self._waiting.append(attempt)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()

    def write_what_is_ready(self) -> None:
        """What was put off, as far as the device has come."""
        while self._waiting and self._waiting[0]():
            self._waiting.popleft()
