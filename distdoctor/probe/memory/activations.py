"""Deep looks: the peak of each phase, and what each module keeps for backward.

What a module keeps is read from the graph when its forward is over, each storage once, at the innermost module that saw it: no
hook is laid on saved tensors, so nothing is computed or kept in another way than without us. What checkpointing throws away is
not there, and so not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probe import sites
from distdoctor.probe.compile_guard import not_traced
from distdoctor.probe.memory import graphs
from distdoctor.probe.memory.context import MemoryContext
from distdoctor.probe.memory.host_memory import PeakMemory
from distdoctor.probe.memory.storages import Storages
from distdoctor.recording.trace.layout import Phase

FIRST_STEPS = 6  # all of them are looked at
EVERY = 32  # steps between two looks after that
MOST_MODULES = 32  # of one step are written, the largest
OUTSIDE = "outside of modules"


def looks_at(step: int) -> bool:
    return step <= FIRST_STEPS or step % EVERY == 0


class DeepLooks:
    """The hooks of a memory stream that looks at every step in depth."""

    def __init__(self, context: MemoryContext, count_categories: Callable[[], None]) -> None:
        self.context, self._count_categories = context, count_categories
        self.peak = PeakMemory()
        self._phases: dict[Phase, list[int]] = {}
        self._open: list[tuple[int, int]] = []  # (id of the module, number of its first operation)
        self._storages: Storages | None = None
        self._saved: dict[str, list[Any]] = {}
        self._paths: dict[int, str] = {}

    def install(self) -> None:
        guarded, module = self.context.guarded, nn.modules.module
        module.register_module_forward_pre_hook(not_traced(guarded(self._forward_begins)))
        module.register_module_forward_hook(not_traced(guarded(self._forward_ended)))

    # -- phases --------------------------------------------------------------------------------------------------------

    def leave(self, phase: Phase) -> None:
        """A phase of the present step is over."""
        if not looks_at(self.context.step + 1):
            return
        now = [self.peak.take(), self.context.resident.now(), self.context.device.now().allocated]
        before = self._phases.get(phase)
        self._phases[phase] = [max(pair) for pair in zip(before, now, strict=True)] if before else now

    def stepped(self) -> None:
        """A step is over: write down what was seen in it."""
        step, trace = self.context.step, self.context.trace
        if not looks_at(step):
            return
        buckets = self._buckets()
        for phase, numbers in self._phases.items():
            peak, rss, allocated = numbers
            trace.peaks.write(step=step, peak=peak, rss=rss, allocated=allocated, buckets=buckets, phase=phase)
        largest = sorted(self._saved.items(), key=lambda item: -item[1][0])[:MOST_MODULES]
        for path, (size, nodes, owner, site) in largest:
            ids = {"path": trace.texts.id(path), "owner": trace.texts.id(owner), "site": trace.texts.id(site)}
            trace.saved.write(step=step, bytes=size, nodes=nodes, **ids)
        self._phases, self._saved, self._storages, self._open = {}, {}, None, []

    def _buckets(self) -> int:
        """Bytes of the buckets that DistributedDataParallel keeps besides the gradients. Lazily made ones are gone by now."""
        total = 0
        for module in list(self.context.trees._modules.values()):
            if not isinstance(module, nn.parallel.DistributedDataParallel):
                continue
            lazy = getattr(module, "lazy_bucket_allocation", False)
            if not module.gradient_as_bucket_view and not lazy:
                sizes = str(
                    module._get_ddp_logging_data().get("bucket_sizes", "")  # type: ignore[no-untyped-call]
                )
                total += sum(int(word) for word in sizes.replace(",", " ").split() if word.isdigit())
        return total

    # -- modules -------------------------------------------------------------------------------------------------------

    def _forward_begins(self, module: nn.Module, inputs: Any) -> None:
        if not looks_at(self.context.step + 1) or not torch.is_grad_enabled() or _in_backward():
            return
        if not self._open and id(module) not in self._paths:
            self._name(module)
        self._open.append((id(module), graphs.now()))

    def _forward_ended(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        numbers = [at for at, (one, _) in enumerate(self._open) if one == id(module)]
        if not numbers or _in_backward():
            return
        _, since = self._open[numbers[-1]]
        del self._open[numbers[-1] :]  # what lies above it was left by an exception
        roots = [tensor.grad_fn for tensor in _tensors(outputs) if tensor.grad_fn is not None]
        if roots and not torch._C._len_torch_dispatch_stack():
            path = self._paths.get(id(module), type(module).__name__)
            self._add(path or type(module).__name__, type(module).__name__, roots, since)

    def outside_modules(self, tensors: Any) -> None:
        """Backward begins: the rest of the graph, what was computed in no module."""
        self._open = []
        if looks_at(self.context.step + 1) and not torch._C._len_torch_dispatch_stack():
            roots = [tensor.grad_fn for tensor in _tensors(tensors) if tensor.grad_fn is not None]
            self._add(OUTSIDE, "", roots, 0)

    def _add(self, path: str, owner: str, roots: list[Any], since: int) -> None:
        if self._storages is None:
            if not self.context.known.seen:
                self._count_categories()
            self._storages = Storages(self.context.known.seen)
        found = graphs.look(roots, self._storages, since=since)
        if found.saved:
            frame = sites.user_frame(sys._getframe(2))
            known = self._saved.setdefault(path, [0, 0, owner, sites.site_of(frame) if frame is not None else ""])
            known[0] += found.saved
            known[1] += found.nodes

    def _name(self, root: nn.Module) -> None:
        wrapped = isinstance(root, nn.parallel.DistributedDataParallel)
        for path, module in root.named_modules():
            self._paths[id(module)] = path.removeprefix("module").removeprefix(".") if wrapped else path


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    return []
