"""How many rows a rank puts through its model between `eval()` and the next training, however they are made: DataLoader or not.

For a few evaluations a hook on all modules counts the calls of the one that was put into eval mode. Nothing is read but the
shape of the first tensor that a call is given.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import compiles, not_traced
from distdoctor.probe.context import Rank
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import RowsEvaluated

MOST_EVALUATIONS = 8
MOST_CALLS = 20_000  # of any module, in all of them


class EvaluatedRows:
    """Counts on one rank."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self._module: weakref.ref[nn.Module] | None = None  # that was put into eval mode
        self._inside: set[int] = set()  # ids of its parts
        self._hook: Any = None
        self._site = self._calls = self._rows = self._elements = self._seen = self._step = self._noted = 0

    def install(self) -> None:
        """Watch `eval()` from now on."""
        wrappers.listen(nn.Module, "eval", before=self.rank.guarded(self._begins))
        self.rank.at_end.append(self.rank.guarded(self._ends))

    def _begins(self, module: nn.Module) -> None:
        while isinstance(module, (DataParallel, DistributedDataParallel)):
            module = module.module
        if self._hook is not None and (self.rank.step != self._step or id(module) not in self._inside):
            self._ends()
        if self._noted >= MOST_EVALUATIONS or self._seen > MOST_CALLS or compiles():
            return
        if self._hook is None and module.training and self.rank.step:
            self._module, self._step = weakref.ref(module), self.rank.step
            self._site = self._calls = self._rows = self._elements = 0
            self._inside = {id(part) for part in module.modules()}
            hook = not_traced(self.rank.guarded(self._called))
            self._hook = nn.modules.module.register_module_forward_pre_hook(hook)

    def _called(self, module: nn.Module, given: Any) -> None:
        self._seen += 1
        if self.rank.step != self._step or self._seen > MOST_CALLS:
            self._ends()
        elif self._module is not None and self._module() is module:
            if module.training:
                self._ends()
                return
            first = next((one for one in given if isinstance(one, Tensor)), None)
            if first is not None and first.dim():
                self._rows += first.shape[0]
                self._elements += first.numel()
                self._calls += 1
                if not self._site:
                    self._site = self.trace.texts.id(sites.calling_site(self._inside))

    def _ends(self) -> None:
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        if self._calls and self._seen <= MOST_CALLS:
            self._noted += 1
            self.trace.note(RowsEvaluated(self._rows, self._calls, self._step, self._elements), site=self._site)
