"""Evaluations that build a graph nobody asks for: model.eval() switches dropout off, not gradients.

Counted by the numbers that autograd gives to its operations: where gradients are off, none is given between `eval()`
and `train()`. A backward pass in between shows that the graph was wanted (attacks, fine-tuning with frozen statistics),
and nothing is said.

`EVALUATED` holds: text: the variable that held the graph, more: RUNNING, OVER or USED, a: operations, b: bytes kept by the
largest holder, c: batches of a DataLoader.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.memory import graphs
from distdoctor.probe.memory.context import MemoryContext
from distdoctor.probe.memory.holders import HolderScan
from distdoctor.recording.trace.events import Evaluated

RUNNING, OVER, USED = "running", "over", "used"
LOOK_AT = 3  # batches asked for: the outputs of the second one are still there
MOST_TOLD = 4  # evaluations of a job that are written down


class Evaluations:
    """What happens between `eval()` and `train()`."""

    def __init__(self, context: MemoryContext) -> None:
        self.context = context
        self._inside = threading.local()  # eval() calls train(False), which calls itself for each child
        self._told = 0
        self._open = False
        self._first = self._backwards = self._batches = self._site = self._bytes = 0
        self._label = ""
        self._running_told = False

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
            self._end()
        elif not self._open and module.training and self._told < MOST_TOLD:
            self._open, self._running_told = True, False
            self._first, self._backwards = graphs.now(), self.context.gradients_asked
            self._batches = self._bytes = 0
            self._label = ""
            self._site = self.context.trace.texts.id(sites.user_site())

    def next_batch(self) -> None:
        """A DataLoader is asked for a batch."""
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
        units = HolderScan(self.context.known, only_frames=True, seconds=0.05).units()
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
            self._tell(OVER)
            self._told += 1

    def _tell(self, how: str) -> None:
        nodes = graphs.now() - self._first
        told = Evaluated(self._label, how, nodes, self._bytes, max(0, self._batches - 1))
        self.context.trace.note(told, site=self._site)
