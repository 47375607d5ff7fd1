"""Where a loss that is not finite comes from, in runs that do not look at every layer: from the values that autograd has kept for
backward anyway.

It is asked once in a rank, when the loss is not finite: a healthy training pays nothing. Values are read as they were stored.
Where a hook stands in front of one (checkpointing recomputes it, offloading copies it back) nothing is said, since that would run
code of the host. torch shows hooks from 2.9 on (`SavedTensor.unpack_hook`); older ones are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distdoctor.probe.tensors.digests import has_memory, is_readable, local

MOST_NODES = 20_000
_PREFIX = "_raw_saved_"
_VIEWS = (
    "T",
    "Transpose",
    "Permute",
    "View",
    "Reshape",
    "UnsafeView",
    "Expand",
    "Squeeze",
    "Unsqueeze",
    "Alias",
    "Slice",
)
_PASSES_ON = (
    *_VIEWS,
    "Relu",
    "LeakyRelu",
    "Gelu",
    "Silu",
    "Neg",
    "Clone",
    "NativeDropout",
)  # an infinity was one before
_ADD_UP = ("Mean", "Sum")  # an infinity was one before, or they have overflowed
# Operations whose infinity is their own work. Others pass on what was put in, as masks are: -inf in front of a softmax is right.
_MAKES_INFINITIES = (
    "Log", "Div", "Exp", "Expm1", "Pow", "Sqrt", "Rsqrt", "Reciprocal", "Addmm", "Mm", "Bmm", "Linear", "Convolution",
    "Log2", "Log10", "Log1P", "Atanh", "Tan", "Logit", "Prod", "Norm", "LinalgVectorNorm", "Var", "Std",
)  # fmt: skip


class Origin(NamedTuple):
    """`what`: `nan` or `infinity`, with the operations of which one made it or was given it, first things first; `outside` (a NaN
    that an operation was given, and nobody trains); `weight`."""

    what: str
    name: str


_UNKNOWN = Origin("", "")


def origin_of(root: Tensor, holder_of: Callable[[Tensor], tuple[str, str]]) -> Origin | None:
    """The first value that is not finite, in the order of the forward pass, of those that are kept for the backward pass of
    `root`. None: none is, or they cannot be read. `holder_of`: a parameter's name and the class of its module."""
    if not hasattr(getattr(torch._C._autograd, "SavedTensor", None), "unpack_hook"):
        return None
    graph = _Graph(_nodes(root.grad_fn), holder_of)
    for node in graph.order:
        for name, saved in _saved(node):
            if saved.unpack_hook is not None:
                return None
            value = saved.data
            if not isinstance(value, Tensor) or not has_memory(local(value)):
                continue
            found = graph.judged(node, name, value)
            if found is not None:
                return found if found is not _UNKNOWN else None
    return None


class _Graph:
    """The operations of one forward pass in their order, the layers that they belong to, and what is known of their results."""

    def __init__(self, nodes: list[Any], holder_of: Callable[[Tensor], tuple[str, str]]) -> None:
        self.order = {node: at for at, node in enumerate(nodes)}
        self._holder_of = holder_of
        self._finite: set[Any] = set()  # operations whose results are known to be
        self._masked = False  # an infinity was seen that may be meant so: later ones may come of it

    def judged(self, node: Any, name: str, value: Tensor) -> Origin | None:
        """None for a value that is finite, or whose infinities may be meant so."""
        has_nan, has_infinity = _not_finite(value)
        maker = node if name.startswith(("result", "output", "out")) else value.grad_fn
        if not has_nan and not has_infinity:
            self._finite.add(maker)
            return None
        if not has_nan:
            maker = _behind(_PASSES_ON, maker)
            source = _behind((*_PASSES_ON, *_ADD_UP), maker)
            self._masked |= source is None or _word(source) not in _MAKES_INFINITIES
            if self._masked:
                return None
        suspects = self._suspects(maker) if maker is not None else []
        own = (parameter for one in (suspects or [node]) for parameter in _parameters(one))
        weights = [one for one in (_variable(maker), *own) if one is not None]
        broken = next((one for one in weights if any(_not_finite(one))), None)
        if broken is not None:
            return Origin("weight", self._holder_of(broken)[0])
        if not all(has_memory(local(one)) for one in weights):
            return _UNKNOWN  # they may have been what was not finite
        if not suspects:
            return Origin("outside", self._words([node]))
        return Origin("nan" if has_nan else "infinity", self._words(suspects))

    def _suspects(self, maker: Any) -> list[Any]:
        """An operation and those before it of whose results nothing is known, in the order of the forward pass."""
        found: set[Any] = set()
        left = [maker]
        while left:
            node = left.pop()
            if node in self.order and node not in found and node not in self._finite:
                found.add(node)
                left += [one for one, _ in node.next_functions if one is not None]
        work = [node for node in found if _word(node) not in _VIEWS]
        return sorted(work, key=self.order.__getitem__)

    def _words(self, nodes: list[Any]) -> str:
        """`head (Linear)`, `log after body (Linear)`, `body (Linear), log or add`."""
        names = list(dict.fromkeys(self._layer(node) or _word(node).lower() for node in nodes))
        names = [*names[:2], f"{len(names) - 5} more", *names[-3:]] if len(names) > 6 else names
        words = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        earlier = (self._layer(one) for one in reversed(list(self.order)[: self.order[nodes[0]]]))
        after = "" if any(map(self._layer, nodes)) else next((layer for layer in earlier if layer), "")
        return f"{words} after {after}" if after else words

    def _layer(self, node: Any) -> str:
        """The layer whose parameters an operation uses."""
        for parameter in _parameters(node):
            name, owner = self._holder_of(parameter)
            if name:
                return f"{name.rpartition('.')[0] or name} ({owner})" if owner else name
        return ""


def _nodes(root: Any) -> list[Any]:
    """Of the graph, in the order of the forward pass."""
    found: set[Any] = set()
    left = [root] if root is not None else []
    while left and len(found) < MOST_NODES:
        node = left.pop()
        if node not in found and not hasattr(node, "variable"):
            found.add(node)
            left += [one for one, _ in node.next_functions if one is not None]
    return sorted(found, key=lambda node: int(node._sequence_nr()))


def _saved(node: Any) -> Iterator[tuple[str, Any]]:
    for attribute in dir(type(node)):
        if attribute.startswith(_PREFIX):
            saved = getattr(node, attribute)
            for one in saved if isinstance(saved, tuple | list) else (saved,):
                if one is not None:
                    yield attribute.removeprefix(_PREFIX), one


def _behind(words: tuple[str, ...], node: Any) -> Any:
    """The first operation, from this one backwards, that is none of these."""
    while node is not None and _word(node) in words and node.next_functions:
        node = node.next_functions[0][0]
    return node


def _variable(node: Any) -> Tensor | None:
    """The parameter, where a node of the graph stands for one."""
    return getattr(node, "variable", None)


def _parameters(node: Any) -> Iterator[Tensor]:
    for one, _ in node.next_functions:
        variable = _variable(_behind(_VIEWS, one))
        if variable is not None:
            yield variable


def _word(node: Any) -> str:
    """`Log` of LogBackward0."""
    return str(type(node).__name__).partition("Backward")[0]


def _not_finite(value: Tensor) -> tuple[bool, bool]:
    """Whether it holds NaN, and whether it holds infinities; what lies on a device is taken to hold none."""
    inner = local(value).detach()
    if not inner.is_floating_point() or inner.device.type != "cpu" or not is_readable(value) or not inner.numel():
        return False, False
    if bool(torch.isfinite(inner.sum(dtype=torch.float64))):
        return False, False
    return bool(torch.isnan(inner).any()), bool(torch.isinf(inner).any())
