"""Tensors that require a gradient, were summed over the ranks in place, and decide the gradient of the loss all the same.

Autograd does not see `all_reduce`: the gradient goes through it as if nothing had happened. At `backward` the graph of the loss
is searched for what was computed from the tensor after the sum, and kept for backward. Only numbers of operations are remembered,
and nothing is read but whether a kept tensor requires a gradient; so this holds on any device, and for asynchronous sums.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distdoctor.probe import sites
from distdoctor.probe.compile_guard import watched
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.loss_graph import NODES, nodes_behind, saved_by
from distdoctor.probe.tensors.digests import bytes_of
from distdoctor.recording.trace.events import DetachedGather

LOOKS = 6  # backward passes that are searched
MOST = 8  # sums before one backward pass


@dataclass(frozen=True)
class Reduction:
    """`made`: (number, name) of the operation that made the tensor, or what it is a view of. `since`: number of the next one."""

    site: int
    made: frozenset[tuple[int, str]]
    since: int
    step: int
    nbytes: int
    ranks: tuple[int, ...]


class Reductions:
    """Remembers the sums since the last backward pass."""

    def __init__(self, context: GradientsContext, hooked: Callable[[], bool]) -> None:
        """`hooked`: whether somebody hooks saved tensors, which looking at them would run."""
        self.context, self.hooked = context, hooked
        self._pending: list[Reduction] = []
        self._looks = 0
        self._told: set[int] = set()

    def install(self) -> None:
        self.context.rank.on_summed = self.context.guarded(self.summed)

    def summed(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """A tensor that requires a gradient is about to be summed over these ranks. One number may be a loss: its value does not
        matter where nothing but means and sums follow."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or self.hooked() or watched():
            return
        if len(self._pending) >= MOST or tensor.numel() < 2:
            return
        made = [one.grad_fn for one in (tensor, tensor._base) if one is not None and one.grad_fn is not None]
        site = self.context.trace.texts.id(sites.user_site())
        if made and len(ranks) > 1 and site not in self._told:
            known = frozenset((node._sequence_nr(), node.name()) for node in made)
            since = torch._C._autograd._get_sequence_nr()
            self._pending.append(
                Reduction(site, known, since, self.context.step + 1, bytes_of(tensor), tuple(sorted(ranks)))
            )

    def backward_begins(self, root: Any) -> None:
        """Search the graph of what `backward` is called on."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        if self.hooked() or watched() or not isinstance(root, Tensor) or root.grad_fn is None:
            return
        self._looks += 1
        if self._looks >= LOOKS:
            self.context.rank.on_summed = None
        graph = list(nodes_behind(root.grad_fn))
        if len(graph) >= NODES:
            return
        users = _users(graph)
        for one in pending:
            if one.site not in self._told and _decides(one, graph, users):
                self._told.add(one.site)
                only = _is_only_way(root.grad_fn, pending, users)
                found = DetachedGather("all_reduce", True, one.step, one.nbytes, one.ranks, only, _value(root))
                self.context.trace.note(found, site=one.site)


def _users(graph: Iterable[Any]) -> dict[Any, list[Any]]:
    """operation -> those that were given its output."""
    users: dict[Any, list[Any]] = defaultdict(list)
    for node in graph:
        for following, _ in node.next_functions:
            if following is not None:
                users[following].append(node)
    return users


def _decides(one: Reduction, graph: Iterable[Any], users: dict[Any, list[Any]]) -> bool:
    """Whether what was summed was used afterwards, and its value changes the gradient: something on the way to the loss has kept
    a tensor with a gradient. Not where the source multiplies by the number of ranks, which makes up for what is missing."""
    made = [node for node in graph if (node._sequence_nr(), node.name()) in one.made]
    waiting = [user for node in made for user in users[node] if user._sequence_nr() >= one.since]
    seen, kept = set(waiting), False
    while waiting:
        node = waiting.pop()
        saved = list(saved_by(node))
        if node.name() == "MulBackward0" and any(_is_number(tensor, len(one.ranks)) for tensor in saved):
            return False
        kept = kept or any(tensor.requires_grad for tensor in saved)
        following = [user for user in users[node] if user not in seen]
        seen.update(following)
        waiting.extend(following)
    return kept


def _is_only_way(root: Any, sums: Iterable[Reduction], users: dict[Any, list[Any]]) -> bool:
    """Whether everything that is trained decides the loss through the sums alone, by what was computed from them afterwards."""
    since = {known: one.since for one in sums for known in one.made}
    seen, waiting = {root}, [root]
    while waiting:
        node = waiting.pop()
        summed = since.get((node._sequence_nr(), node.name()))
        if summed is not None and all(user._sequence_nr() >= summed for user in users[node]):
            continue
        if summed is not None or hasattr(node, "variable"):  # used before the sum as well; a leaf
            return False
        following = [one for one, _ in node.next_functions if one is not None and one not in seen]
        seen.update(following)
        waiting.extend(following)
    return True


def _value(loss: Tensor) -> float:
    """Of a loss in host memory. Asking a device for it would wait."""
    return float(loss.detach()) if loss.device.type == "cpu" and loss.numel() == 1 else math.nan


def _is_number(tensor: Tensor, number: int) -> bool:
    """Whether a factor in host memory is this number."""
    return not tensor.requires_grad and tensor.numel() == 1 and tensor.device.type == "cpu" and tensor.item() == number
