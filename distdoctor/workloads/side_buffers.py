"""What a kernel allocates besides its results and frees again before it returns: no tensor without data shows it.

Measured with the profiler's memory events on torch 2.15, CPU with oneDNN and gloo. Not modelled is what oneDNN takes for a
product of 16-bit matrices where the CPU has instructions for them: blocks of both factors and sums in fp32, 13 KiB to 1.4 MiB
per thread whatever the model's size, which only a model of a few MiB feels. Kernels of a GPU have workspaces of their own,
which are not modelled: they are part of the headroom that a budget needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
SCRATCH_16_BIT = 2
"""oneDNN sums the gradient of a 16-bit weight in fp32: twice the weight."""
PLAIN_CHANNELS = 8
"""Inputs whose channels are no multiple of this are read where they lie; others are first copied into oneDNN's layout."""


def of(func: Any, args: Any, out: Any) -> tuple[int, int]:
    """(bytes held before the results are there, bytes held besides the results at the end)."""
    if func is aten.convolution.default:
        return _convolution(args[0], args[1], out)
    if func is aten.convolution_backward.default:
        return _convolution_backward(args[0], args[1], args[2], args[-1])
    # gloo gathers into a flat copy of the output, and reduces a copy of the input.
    if func is torch.ops.c10d._allgather_base_.default:
        return args[0].nbytes, 0
    if func is torch.ops.c10d._reduce_scatter_base_.default:
        return args[1].nbytes, 0
    return 0, 0


def _convolution(inputs: Tensor, weight: Tensor, outputs: Tensor) -> tuple[int, int]:
    return _copied(inputs) + weight.nbytes + outputs.nbytes, outputs.nbytes


def _convolution_backward(gradient: Tensor, inputs: Tensor, weight: Tensor, mask: Sequence[bool]) -> tuple[int, int]:
    scratch = SCRATCH_16_BIT * weight.nbytes if weight.element_size() == 2 else 0
    # First the gradient of the input, which is then copied out of oneDNN's layout and once more; after that the weight's.
    of_input = 3 * inputs.nbytes if mask[0] else 0
    of_weight = _copied(inputs) + inputs.nbytes + gradient.nbytes + weight.nbytes + scratch
    return max(of_input, of_weight), weight.nbytes


def _copied(inputs: Tensor) -> int:
    return inputs.nbytes if inputs.shape[1] % PLAIN_CHANNELS == 0 else 0
