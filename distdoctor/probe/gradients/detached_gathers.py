"""Features that a collective gathered without their gradient, and that the loss was computed from all the same.

At `backward` the graph of the loss is searched for the bits that came out of the collective. On the CPU, a few times; nothing is
kept alive: of what was gathered a checksum is remembered. Features that were detached for the gathering are known by the variable
beside them that has the same storage and a gradient.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.autograd.graph
import torch.distributed
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import watched
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.loss_graph import NODES, nodes_behind, saved_by
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.tensors.digests import bytes_of, digest, is_readable
from distdoctor.probe.variables import locals_of
from distdoctor.recording.trace.events import DETACHED, DetachedGather, GatheredBesideOwn

LOOKS = 6  # backward passes that are searched
MOST_BYTES = 16 << 20  # of what was gathered
NEAREST = 16  # operations in front of a gathering, of which one keeps something for backward
MOST_OWN = 4  # parameters that the loss is made of and no wrapper averages
SEARCHES = 24  # for the variable behind something without a gradient


@dataclass
class Gather:
    """One gathering of something that requires a gradient."""

    op: str
    site: int
    given: weakref.ref[Tensor]
    start: int  # number of the operation that made the features; -1: none
    step: int
    parts: list[tuple[int, int]]  # (bytes, checksum) of what came from each rank, or of all together
    own: int  # this rank's number in the group

    @property
    def nbytes(self) -> int:
        return sum(size for size, _ in self.parts)


class Gathers:
    """Remembers the gatherings since the last backward pass."""

    def __init__(self, context: GradientsContext) -> None:
        self.context = context
        self._pending: list[Gather] = []
        self._cut: list[Gather] = []  # a loss has no path to these features; another one of the step may have
        self._looks = self._searches = 0
        self._told: set[int] = set()
        self._loss = math.nan
        self.off = False  # somebody hooks saved tensors

    def install(self) -> None:
        for name in ("all_gather", "all_gather_into_tensor"):
            wrappers.lay_everywhere((c10d, torch.distributed), name, self._around(name))
        wrappers.lay(torch.autograd.graph.saved_tensors_hooks, "__enter__", self._around_enter)

    def _around_enter(self, original: Any) -> Any:
        def __enter__(hooks: Any) -> Any:
            # Looking at saved tensors would run the user's hooks, or recompute a checkpoint: no more of that.
            self.off = True
            return original(hooks)

        return __enter__

    def _around(self, op: str) -> Any:
        @self.context.guarded
        def gathered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._cut:
                self._next_step(self.context.trace.texts.id(sites.user_site()))
            if self.off or self._looks >= LOOKS or not torch.is_grad_enabled() or watched():
                return
            names = ("tensor_list", "tensor") if op == "all_gather" else ("output_tensor", "input_tensor")
            out, given = (args[i] if len(args) > i else kwargs.get(name) for i, name in enumerate(names))
            if kwargs.get("async_op", len(args) > 3 and args[3]):
                return  # nothing is there yet
            if not isinstance(given, Tensor) or given.device.type != "cpu" or given.numel() < 2:
                return
            features, word = (given, op) if given.requires_grad else (self._behind(given), op + DETACHED)
            if features is not None:
                self._remember(word, out if isinstance(out, list) else [out], features, args, kwargs)

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if not torch.compiler.is_compiling():  # a whole graph (fullgraph=True) may not be left for us
                    gathered(args, kwargs)
                return result

            return call

        return make

    def _next_step(self, site: int) -> None:
        """The line gathers again: no backward pass of the step before has gone through what was cut there."""
        for one in [one for one in self._cut if one.site == site]:
            self._cut.remove(one)
            self._tell(one, reached=False)

    def _behind(self, given: Tensor) -> Tensor | None:
        """The variable of the user's function whose detached twin this is."""
        if self._searches >= SEARCHES or not given.is_floating_point():
            return None
        self._searches += 1
        frame = sites.user_frame(sys._getframe(1))
        held = (value for _, value in (locals_of(frame) if frame is not None else ()))
        return next((value for value in held if type(value) is Tensor and _is_twin(value, given)), None)

    def _remember(self, op: str, outputs: list[Any], given: Tensor, args: Any, kwargs: Any) -> None:
        if not all(type(one) is Tensor and one.is_contiguous() and not one.requires_grad for one in outputs):
            return
        if sum(map(bytes_of, outputs)) > MOST_BYTES or len(self._pending) >= 8:
            return
        group = kwargs.get("group", args[2] if len(args) > 2 else None)
        own = torch.distributed.get_rank(group)
        site = self.context.trace.texts.id(sites.user_site())
        parts = [(one.nbytes, _checksum(one.data_ptr(), one.nbytes)) for one in outputs]
        start = given.grad_fn
        if start is not None and _was_differentiated(start):
            return  # a loss of their own has been through them: constants for this one
        number = start._sequence_nr() if start is not None else -1
        self._pending.append(Gather(op, site, weakref.ref(given), number, self.context.step + 1, parts, own))

    def backward_begins(self, root: Any) -> None:
        """Search the graph of what `backward` is called on."""
        if not self._pending and not self._cut:
            return
        pending, self._pending = self._pending, []
        cut, self._cut = self._cut, []
        if self.off or self._looks >= LOOKS or watched() or not isinstance(root, Tensor) or root.grad_fn is None:
            return
        self._looks += 1
        graph = list(nodes_behind(root.grad_fn))
        if len(graph) >= NODES:
            return
        numbers = {node._sequence_nr() for node in graph} if cut else set()
        self._cut = [one for one in cut if one.start not in numbers]
        self._told |= {one.site for one in cut if one.start in numbers}
        saved = [tensor for node in graph for tensor in saved_by(node)]
        self._loss = float(root) if root.numel() == 1 and root.device.type == "cpu" else math.nan
        for one in pending:
            self._judge(one, graph, saved)

    def _judge(self, one: Gather, graph: Sequence[Any], saved: Sequence[Tensor]) -> None:
        if one.site in self._told:
            return
        found = [tensor for tensor in saved if _holds(tensor, one)]
        if any(tensor.requires_grad for tensor in found):
            self._own_put_back(one, graph)
        if not found or any(tensor.requires_grad for tensor in found):
            return
        given = one.given()
        start = given.grad_fn if given is not None else None
        reached = given is None or start is None or any(node is start for node in graph)
        if one.op.endswith(DETACHED) and not (given is not None and _leads_to(graph, given)):
            return  # trained on nowhere else: constants on purpose
        if reached:
            self._tell(one, reached=True)
        elif all(known.site != one.site for known in self._cut):
            self._cut.append(one)

    def _own_put_back(self, one: Gather, graph: Sequence[Any]) -> None:
        """The rank's own features stand in what was gathered: what the loss says of those of other ranks, by parameters that it
        shares with nobody, reaches nobody."""
        wrapped = self.context.agreement.wrapped
        averaged = {number for known in wrapped for number in known.reduced}
        leaves = (getattr(node, "variable", None) for node in graph)
        own = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad and id(leaf) not in averaged]
        own = [leaf for leaf in own if is_readable(leaf) and leaf.device.type == "cpu"][:MOST_OWN]
        self._told.add(one.site)
        if not wrapped or not own:
            return
        names = self.context.trees.names(own)
        for leaf in own:
            if id(leaf) in names:
                event = GatheredBesideOwn(names[id(leaf)].name, digest(leaf) >> 1, self.context.step + 1, self._loss)
                self.context.trace.note(event, site=one.site)

    def _tell(self, one: Gather, *, reached: bool) -> None:
        self._told.add(one.site)
        self.context.trace.note(DetachedGather(one.op, reached, one.step, one.nbytes), site=one.site)


def _is_twin(live: Tensor, given: Tensor) -> bool:
    """Whether a tensor has a gradient and the very elements of one that has none."""
    plain = (
        live.requires_grad and live.grad_fn is not None and live.layout is torch.strided and live.device.type == "cpu"
    )
    return (
        plain and live.shape == given.shape and live.stride() == given.stride() and live.data_ptr() == given.data_ptr()
    )


def _leads_to(graph: Sequence[Any], features: Tensor) -> bool:
    """Whether a gradient reaches this very tensor, not only another output of the operation that made it."""
    edge = (features.grad_fn, features.output_nr)
    return any(edge == following for node in graph for following in node.next_functions)


def _holds(tensor: Tensor, one: Gather) -> bool:
    """Whether a tensor's storage holds the bits that came from all other ranks, one behind the other (cat, stack, the output).

    A part of zeros alone proves nothing.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return False
    storage = tensor.untyped_storage()
    if storage.nbytes() != one.nbytes:
        return False
    at = storage.data_ptr()
    for rank, (size, checksum) in enumerate(one.parts):
        if (rank != one.own or len(one.parts) == 1) and _checksum(at, size) != checksum:
            return False
        at += size
    others = [part for rank, part in enumerate(one.parts) if rank != one.own or len(one.parts) == 1]
    return any(checksum != zlib.crc32(bytes(size)) for size, checksum in others)


def _checksum(address: int, size: int) -> int:
    return zlib.crc32((ctypes.c_char * size).from_address(address)) if size else 0


def _was_differentiated(start: Any) -> bool:
    """Whether a backward pass has been through this operation: it frees what it had kept. The nearest one that keeps tells, but
    for those of the user's own functions, which show it by other names."""
    for node in islice(nodes_behind(start), NEAREST):
        names = dir(node)
        raw = (name.removeprefix("_raw") for name in names if name.startswith("_raw_saved_"))
        kept = next((name for name in raw if name in names), None)
        if kept is not None:
            try:
                getattr(node, kept)
            except RuntimeError as error:
                hand_on(error)
                return True
            return False
    return False
