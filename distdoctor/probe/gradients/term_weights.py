"""How much the terms of a summed loss weigh together: a loss divided by just that is the mean of its own batch."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from distdoctor.probe.compile_guard import watched

_SUM = 2  # at::Reduction::Sum (torch 2.15)
_SHAPES = (
    "ViewBackward",
    "ReshapeAliasBackward",
    "UnsafeViewBackward",
    "ToCopyBackward",
)  # leave the terms as they are


def is_by_own_weight(factor: str, node: Any) -> bool:
    """Whether `factor` (`div 56`) divides a sum by what its terms weigh together: their number, or the sum of what each of them
    was multiplied by. False where that lies on a device or is not known."""
    word, _, value = factor.partition(" ")
    if word != "div" or value == "tensor" or watched():
        return False
    return any(math.isclose(float(value), weight, rel_tol=1e-5) for weight in _weights(node))


def _weights(node: Any) -> list[float]:
    """What the terms of a sum can weigh: each 1, or what a mask or weights give it."""
    name = type(node).__name__
    if name.startswith("NllLoss") and getattr(node, "_saved_reduction", None) == _SUM:
        return _total(getattr(node, "_saved_total_weight", None), 1)
    if name.startswith("DotBackward"):
        return _total(getattr(node, "_saved_tensor", None)) or _total(getattr(node, "_saved_self", None))
    if not name.startswith("SumBackward0"):
        return []
    terms = math.prod(getattr(node, "_saved_self_sym_sizes", ()))
    inner = node.next_functions[0][0]
    while inner is not None and type(inner).__name__.startswith(_SHAPES):
        inner = inner.next_functions[0][0]
    if inner is None or not type(inner).__name__.startswith("MulBackward"):
        return [float(terms)]
    saved = (getattr(inner, f"_saved_{side}", None) for side in ("other", "self"))
    return [float(terms), *(weight for one in saved for weight in _total(one, terms))]


def _total(weights: Any, terms: int | None = None) -> list[float]:
    """The sum of a tensor of weights: on the CPU, one for each term."""
    if not isinstance(weights, Tensor) or weights.device.type != "cpu" or weights.requires_grad:
        return []
    return [float(weights.detach().sum())] if terms in (None, weights.numel()) else []
