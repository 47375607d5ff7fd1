"""In which precision the matrix products of a step are computed, read once off the graph that backward is about to go through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import FullPrecision
from distdoctor.recording.trace.layout import GRAPH_NODES

PRODUCTS = ("AddmmBackward0", "MmBackward0", "BmmBackward0", "BaddbmmBackward0", "ConvolutionBackward0")
"""What autograd calls those that 16-bit units speed up, in torch 2.5-2.15."""
_OPERANDS = ("_raw_saved_mat1", "_raw_saved_mat2", "_raw_saved_self", "_raw_saved_input", "_raw_saved_weight")


def note_full_precision(trace: TraceWriter, roots: Iterable[Tensor], site: int) -> None:
    """Write down that all matrix products behind these tensors are in fp32 on a CUDA device; nothing where one is not."""
    operands = list(_operands([root.grad_fn for root in roots]))
    if not operands or not all(one.is_cuda and one.dtype == torch.float32 for one in operands):
        return
    about = torch.cuda.get_device_properties(operands[0].device)
    tf32 = "tf32" if torch.get_float32_matmul_precision() != "highest" else "ieee"
    size = sum({one.data_ptr(): one.nbytes for one in operands}.values())
    trace.note(FullPrecision(about.name, tf32, 10 * about.major + about.minor, size), site=site)


def _operands(roots: Iterable[Any]) -> Iterable[Tensor]:
    stack = [node for node in roots if node is not None]
    seen, kept = {id(node) for node in stack}, list(stack)  # kept: a wrapper that dies gives its number to another
    while stack and len(kept) < GRAPH_NODES:
        node = stack.pop()
        if type(node).__name__ in PRODUCTS:
            packed = (getattr(getattr(node, name, None), "data", None) for name in _OPERANDS)
            yield from (one for one in packed if isinstance(one, Tensor))
        for following, _ in node.next_functions:
            if following is not None and id(following) not in seen:
                seen.add(id(following))
                kept.append(following)
                stack.append(following)
