"""Evaluations that build a graph nobody asks for: model.eval() switches dropout off, not gradients.

Counted by the numbers that autograd gives to its operations: where gradients are off, none is given between `eval()`
and `train()`. A backward pass in between shows that the graph was wanted (attacks, fine-tuning with frozen statistics),
and nothing is said. An evaluation without a DataLoader is looked at when it ends, while its variables still live; it is written
down when an optimizer has stepped after a backward pass that did not go through its operations.

`EVALUATED` holds: text: the variable that held the graph, more: RUNNING, OVER or USED, a: operations, b: bytes kept by the
largest holder, c: batches of a DataLoader.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.memory import graphs
from distdoctor.probe.memory.context import MemoryContext
from distdoctor.probe.memory.evaluation_growth import EvaluationGrowth
from distdoctor.probe.memory.holders import HolderScan
from distdoctor.recording.trace.events import Evaluated

RUNNING, OVER, USED = "running", "over", "used"
LOOK_AT = 3  # batches asked for: the outputs of the second one are still there
MOST_TOLD = 4  # evaluations of a job that are written down


@dataclass
class Waiting:
    """An evaluation that is over, and whose operations (numbers from `first` to `last`) a backward pass may still go through."""

    told: Evaluated
    site: int
    first: int
    last: int
    backwards: int = 0  # that have begun since


class Evaluations:
    """What happens between `eval()` and `train()`."""

    def __init__(self, context: MemoryContext) -> None:
        self.context = context
        self._inside = threading.local()  # eval() calls train(False), which calls itself for each child
        self._told = self._ends = 0
        self._open = False
        self._first = self._backwards = self._batches = self._site = self._bytes = 0
        self._label = ""
        self._running_told = False
        self._waiting: Waiting | None = None
        self._growth = EvaluationGrowth(context)

    def install(self) -> None:
        wrappers.lay(nn.Module, "train", self._around_train)

    def _around_train(self, original: Any) -> Any:
        changed = self.context.guarded(self._changed)
        inside = self._inside

        def train(module: nn.Module, mode: bool = True) -> Any:
            if getattr(inside, "at_work", False):
                return original(module, mode)
            inside.at_work = True
            try:
                changed(module, mode)
                return original(module, mode)
            finally:
                inside.at_work = False

        return skipped(train)

    def _changed(self, module: nn.Module, mode: bool) -> None:
        """The outermost `train` or `eval` of a module tree."""
        if mode:
            self._growth.end()
            self._end()
            return
        if module.training:
            self._growth.begin()
        if not self._open and module.training and self._told < MOST_TOLD:
            self._open, self._running_told = True, False
            self._first, self._backwards = graphs.now(), self.context.gradients_asked
            self._batches = self._bytes = 0
            self._label = ""
            self._site = self.context.trace.texts.id(sites.user_site())

    def next_batch(self) -> None:
        """A DataLoader is asked for a batch."""
        self._growth.next_batch()
        if not self._open or not torch.is_grad_enabled():
            return
        if self.context.gradients_asked != self._backwards:
            self._end()
            return
        self._batches += 1
        if self._batches == LOOK_AT and graphs.now() > self._first:
            self._look()
            self._tell(RUNNING)
            self._running_told = True

    def _look(self) -> None:
        """At who holds most of this evaluation's graph: that of an earlier one is no news."""
        scan = HolderScan(self.context.known, since=self._first, only_frames=True, seconds=0.05)
        units = scan.units()
        if scan.failure is not None:
            self.context.leave_out("a holder was left out", scan.failure)
        largest = max(units, key=lambda unit: unit.graph.saved, default=None)
        if largest is not None and largest.graph.saved:
            self._label, self._bytes = largest.label, largest.graph.saved
            self._site = self.context.trace.texts.id(largest.site) or self._site

    def _end(self) -> None:
        if not self._open:
            return
        self._open = False
        if self.context.gradients_asked != self._backwards:
            if self._running_told:
                self._tell(USED)
        elif graphs.now() > self._first:
            if self._batches or self._bytes:
                self._tell(OVER)
                self._told += 1
            elif self._ends < MOST_TOLD:
                self._ends += 1
                self._look()
                self._waiting = (
                    Waiting(self._told_as(OVER), self._site, self._first, graphs.now()) if self._bytes else None
                )

    def backward_begins(self, tensors: Any) -> None:
        """A backward pass begins at these tensors: does it go through the evaluation that has just ended?"""
        waiting = self._waiting
        if waiting is not None:
            waiting.backwards += 1
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors or ())
            if graphs.reaches([getattr(root, "grad_fn", None) for root in roots], waiting.first, waiting.last):
                self._waiting = None

    def stepped(self) -> None:
        """An optimizer has stepped: what no backward pass went through until now is not wanted any more."""
        waiting = self._waiting
        if waiting is not None and waiting.backwards:
            self._waiting = None
            self._told += 1
            self.context.trace.note(waiting.told, site=waiting.site)

    def _tell(self, how: str) -> None:
        self.context.trace.note(self._told_as(how), site=self._site)

    def _told_as(self, how: str) -> Evaluated:
        return Evaluated(self._label, how, graphs.now() - self._first, self._bytes, max(0, self._batches - 1))
