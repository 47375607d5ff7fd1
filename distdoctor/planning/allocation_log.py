"""Every byte that a training allocates and frees, in order, on tensors that hold no data.

A dispatch mode over FakeTensorMode: it sees the results of all operations, follows their storages until nobody holds them, and
counts arithmetic and communication on the way. `_tools.mem_tracker.MemTracker` of torch does the same, keeps statistics of every
module besides and takes four times as long (torch 2.15).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from distdoctor.planning import side_buffers
from distdoctor.planning.memory_timeline import MemoryTimeline

# A later name wins over an earlier one: what is both a bucket and a gradient is a gradient.
PRECEDENCE = ("activations", "temporary", "communication", "buffers", "optimizer", "gradients", "parameters")
_RANK = {name: place for place, name in enumerate(PRECEDENCE)}


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes a timeline while it is entered. `phase` says what the training is doing: it names what nobody labels."""

    def __init__(self, *, on_cpu: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_cpu = on_cpu
        self.timeline = MemoryTimeline()
        self.phase = "setup"
        self._looks_away = False
        self._known: dict[int, tuple[int, Any]] = {}  # address of a storage -> (its number, weak reference)

    def label(self, tensor: Tensor | None, category: str) -> None:
        """From the beginning of its life this tensor's storage counts as `category`."""
        for storage in _storages(tensor) if tensor is not None else ():
            number = self._number_of(storage)
            if _RANK[category] > _RANK[self.timeline.categories[number]]:
                self.timeline.categories[number] = category

    def label_training(self, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Name what the model and the optimizer hold now."""
        for parameter in module.parameters():
            self.label(parameter, "parameters")
            self.label(parameter.grad, "gradients")
        for buffer in module.buffers():
            self.label(buffer, "buffers")
        inner = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer holds the one that has state
        for state in inner.state.values() if inner is not None else ():
            for value in state.values():
                if isinstance(value, Tensor):
                    self.label(value, "optimizer")

    def unseen(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, of whose tensors nothing is written down."""

        def call(*arguments: Any, **named: Any) -> Any:
            self._looks_away = True
            try:
                return function(*arguments, **named)
            finally:
                self._looks_away = False

        return call

    def counted(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The same function, whose result is counted although no operation shows it. For what lies in host memory."""

        def call() -> Tensor:
            result = function()
            if self._on_cpu:
                self._number_of(result.untyped_storage())
            return result

        return call

    @contextmanager
    def following_resizes(self) -> Iterator[None]:
        """FSDP frees gathered parameters by resizing their storages to nothing, which no operation shows."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            number = self._number_of(storage)
            original(storage, size)
            self.timeline.resize(number, storage.nbytes(), self.phase)
            if self.timeline.categories[number] in ("activations", "temporary"):
                self.timeline.categories[number] = "communication"
            return storage

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again as operations on the local tensors
        if func.namespace == "prim" or self._looks_away:  # prim: a tensor is asked for its device
            return func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            return _some_value(args[0])
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        out = func(*args, **(kwargs or {}))
        before, after = side_buffers.of(func, args, out) if self._on_cpu else (0, 0)
        self._for_a_moment(before)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                for storage in _storages(leaf):
                    self._number_of(storage)
        self._for_a_moment(after)
        self._for_a_moment(side_buffers.of_product(func, args) if self._on_cpu else 0, fixed=True)
        self._count(func, args, kwargs or {}, out)
        return out

    def _for_a_moment(self, size: int, *, fixed: bool = False) -> None:
        if size:
            number = self.timeline.allocate(size, "temporary", self.phase)
            self.timeline.resize(number, 0, self.phase)
            if fixed:
                self.timeline.fixed.add(number)

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        packet = func._overloadpacket
        if packet in flop_registry:
            self.timeline.flops[self.phase] = self.timeline.flops.get(self.phase, 0) + int(
                flop_registry[packet](*args, **kwargs, out_val=out)
            )
        elif func.namespace in ("c10d", "_c10d_functional"):
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            for tensor in tensors:
                self.label(tensor, "communication")
            size = max((sum(tensor.nbytes for tensor in group) for group in _groups(args)), default=0)
            self.timeline.communicated(packet.__name__, size, self.phase)

    def _number_of(self, storage: Any) -> int:
        address = storage._cdata
        known = self._known.get(address)
        if known is not None:
            number = known[0]
            if storage.nbytes() != self.timeline.sizes[number]:
                self.timeline.resize(number, storage.nbytes(), self.phase)
            return number
        category = "activations" if self.phase == "forward" else "temporary"
        number = self.timeline.allocate(storage.nbytes(), category, self.phase)

        def forget(_: Any, address: int = address, number: int = number) -> None:
            self._known.pop(address, None)
            self.timeline.resize(number, 0, self.phase)

        self._known[address] = (number, weakref.ref(storage, forget))
        return number


def _storages(tensor: Tensor) -> list[Any]:
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return [storage for one in inner if isinstance(one, Tensor) for storage in _storages(one)]
    return [tensor.untyped_storage()]


def _groups(args: Any) -> list[list[Tensor]]:
    """The tensors of each argument: what goes in, and what comes out."""
    return [[leaf for leaf in tree_leaves(arg) if isinstance(leaf, Tensor)] for arg in args]


def _some_value(tensor: Tensor) -> Any:
    """A number of the right type, for code that reads one (a step count, a loss to print)."""
    return True if tensor.dtype == torch.bool else 1.0 if tensor.dtype.is_floating_point else 1
