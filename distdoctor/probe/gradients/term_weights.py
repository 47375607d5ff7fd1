"""How much the terms of a summed loss weigh together: a loss divided by just that is the mean of its own batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from distdoctor.probe.compile_guard import watched
from distdoctor.probe.gradients.loss_graph import saved_by

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
    if name.startswith("NllLoss"):
        sums = getattr(node, "_saved_reduction", None) == _SUM
        return _totals([getattr(node, "_saved_total_weight", None)], 1) if sums else []
    if name.startswith("DotBackward"):
        return _totals(saved_by(node))
    if not name.startswith("SumBackward0"):
        return []
    terms = math.prod(getattr(node, "_saved_self_sym_sizes", ()))
    inner = node.next_functions[0][0]
    while inner is not None and type(inner).__name__.startswith(_SHAPES):
        inner = inner.next_functions[0][0]
    multiplied = inner is not None and type(inner).__name__.startswith("MulBackward")
    return [float(terms), *(_totals(saved_by(inner), terms) if multiplied else ())]


def _totals(weights: Iterable[Tensor | None], terms: int | None = None) -> list[float]:
    """The sums of tensors of weights: plain ones on the CPU, with one weight for each term."""
    return [
        float(one.detach().sum())
        for one in weights
        if type(one) is Tensor and one.device.type == "cpu" and not one.requires_grad and terms in (None, one.numel())
    ]
